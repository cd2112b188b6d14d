"""The readable state of a connection: its slices, devices, status and timings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.connection import views
from shared_pathways_service.connection.jax_side import JaxSide
from shared_pathways_service.connection.notebook import Board
from shared_pathways_service.connection.request_attributes import RequestAttributes
from shared_pathways_service.errors import ConnectionClosed
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Phase, Snapshot

if TYPE_CHECKING:
    import jax

__all__ = ["ReportedState"]


class ReportedState(RequestAttributes):
    """The part of a connection that only reads reports of its agent and JAX."""

    def __init__(self, request: SessionRequest, close: Callable[[], object]) -> None:
        super().__init__(request)
        self._agent: AgentSession | None = None
        self._jax = JaxSide(request)
        self._timings: dict[str, float] = {}
        self._board = Board(self._repr_html_, close)

    @property
    def proxy_pod_name(self) -> str:
        """The proxy's pod; empty in the embedded service."""
        return self._snapshot.pod

    @property
    def namespace(self) -> str:
        """The namespace of the service; empty in the embedded service."""
        return self._snapshot.namespace

    @property
    def address(self) -> str:
        """The proxy's address on this machine in JAX's form: ``grpc://…``."""
        return f"grpc://{self._snapshot.address}" if self._snapshot.address else ""

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """JAX's devices of all slices.

        Raises:
          ConnectionClosed: The connection is not started, or has ended.
        """
        if not self._jax.is_attached:
            raise ConnectionClosed(f"the connection {self.proxy_job_name} is not live")
        return self._jax.devices

    @property
    def slices(self) -> tuple[views.ConnectedSlice, ...]:
        """The virtual slices, by index, with their devices."""
        return views.slices_of(self._snapshot, self._jax.devices)

    @property
    def total_chips(self) -> int:
        """Chips of all slices together; 0 before the start if no slices were named."""
        placed = [InstanceType.parse(view.instance_type) for view in self._snapshot.slices]
        return sum(kind.chips for kind in placed or self._request.tenant.virtual_slices)

    @property
    def link(self) -> LinkView | None:
        """The resumable link to the proxy; None: it is not resumable, or was not lost yet."""
        return self._snapshot.link

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds by step: the agent's, and ``agent``, ``import_jax``, ``attach``, ``connect``."""
        return {**self._snapshot.timings, **self._timings}

    def status(self) -> views.ConnectionStatus:
        """Returns the connection's status."""
        snapshot = self._snapshot
        return views.ConnectionStatus(
            name=snapshot.name,
            state=snapshot.state,
            placed=snapshot.placed and not snapshot.preempted,
            position=snapshot.position,
            slices={view.index: view.state for view in snapshot.slices},
            starting={view.index: view.generation for view in snapshot.slices if view.starting},
            link=snapshot.link,
            agent_alive=self._agent is not None and self._agent.agent_alive,
            error=self._agent.failure if self._agent else None,
        )

    def __repr__(self) -> str:
        slices = views.slices_text(self._snapshot)
        return f"<Connection {self.proxy_job_name}: {self._snapshot.state}, {slices}>"

    def _repr_html_(self) -> str:
        board = self._board
        return views.as_html(self._snapshot, self.address, board.since, board.wait, board.release)

    def _ipython_display_(self) -> None:
        self._board.display()

    @property
    def _snapshot(self) -> Snapshot:
        if self._agent is not None:
            return self._agent.snapshot
        return Snapshot(name=self._request.name, phase=Phase.NEW)
