"""The connection from its start to its close."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import importlib
import importlib.metadata
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from shared_pathways_service.agent.client import AgentSession
from shared_pathways_service.agent.request import start_of
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.connection import leaving, one_live, views
from shared_pathways_service.connection.asked import AskedFor
from shared_pathways_service.connection.logging_lines import LogLines
from shared_pathways_service.connection.notebook import Board
from shared_pathways_service.connection.progress_display import Progress
from shared_pathways_service.errors import (
    CleanupError,
    ConnectionClosed,
    PlacementTimeout,
    ProxyFailed,
    SharedPathwaysError,
    TunnelError,
)
from shared_pathways_service.events import Event, session
from shared_pathways_service.runtime import allocator
from shared_pathways_service.runtime.descriptors import check_room
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.session.messages import Phase, Snapshot

if TYPE_CHECKING:
    import jax

    from shared_pathways_service.jax_client import Attachment

__all__ = ["Connection"]

#: Seconds for the news of a proxy's end to arrive after JAX has noticed it.
_NEWS_S = 4.0
#: Seconds that a process which ends waits for its agent, which goes on by itself.
_AT_EXIT_S = 5.0
_FOREVER = float("inf")


class Connection(AskedFor):
    """Slices of a service, for the length of a ``with`` block or from `start` to `close`.

    Made by `isc_pathways.connect`. A process has one started connection at a time.

    Leaving ends the proxy and puts JAX back. If the proxy ended before that, leaving raises the
    error that says why (`ProxyFailed` mostly): from JAX's own error if that ended the block, and
    also if the block ended well, because work that was dispatched and not fetched is lost then. An
    error of another kind passes through, with a note.
    """

    def __init__(self, request: SessionRequest) -> None:
        from shared_pathways_service.jax_client import is_strict  # noqa: PLC0415 - when it is used

        super().__init__(request)
        self._strict = is_strict(request.client.strict)
        self._settings = Settings.load(profile=request.client.profile)
        self._process = os.getpid()
        self._progress = Progress(quiet=self._settings.log_level in ("ERROR", "CRITICAL"))
        self._agent: AgentSession | None = None
        self._attachment: Attachment | None = None
        self._undo = contextlib.ExitStack()
        self._timings: dict[str, float] = {}
        self._warnings: list[str] = []
        self._left: CleanupError | None = None
        self._reason = ""
        self._patience_s: float | None = None
        self._failure: SharedPathwaysError | None = None
        self._raised: SharedPathwaysError | None = None
        self._board = Board(self._repr_html_)
        self._lines = self._new_lines()

    # ---- beginning and end

    def start(self) -> Connection:
        """Starts the connection and returns it when the slices are there (or the proxy answers).

        Where a connection with the same request is live in this process, as when a cell of a
        notebook is run again, that one is returned, and calls this one's `on_event` from then on;
        if it has failed, it is closed first.

        Raises:
          InvalidRequestError: A connection with another request is live in this process, this
            process was forked from one with a live connection, or the service has no such slices.
          PreflightError: There is no service, or it does not take the request.
          SlicesTaken: Others hold the slices; `holders` names them.
          PlacementTimeout: The slices were not placed in time.
          ProxyFailed: The proxy ended, or did not begin to serve.
          TunnelError: The proxy cannot be reached.
        """
        live = one_live.live_owner()
        if isinstance(live, Connection) and live._take_over(self._request):  # noqa: SLF001 - its own
            return live
        return self._start()

    def _start(self) -> Self:
        one_live.claim(self, self.proxy_job_name)
        self._process = os.getpid()
        self._agent = self._failure = self._raised = None
        self._timings = {}
        self._warnings = []
        self._lines = self._new_lines()
        self._start_time = time.time()
        self._undo.callback(one_live.release, self)
        try:
            self._begin()
        except BaseException as error:
            self._progress.end()
            left = self._end("connect() did not succeed")
            self._raised = self._failure
            for note in (*self._warnings, *([] if left is None else [str(left)])):
                error.add_note(note)
            raise
        self._progress.end("connected")
        self._lines.tell_attached(self.cluster)
        return self

    def close(self) -> None:
        """Ends the proxy, gives the slices back, and puts JAX back; a second call does nothing.

        In a forked child it does nothing either: the connection is the parent's.

        Raises:
          SharedPathwaysError: The connection had failed before, and this was not raised yet.
          CleanupError: Something is left behind.
        """
        if self._is_forked():
            return
        left = self._end("closed")
        if self._failure is not None and self._raised is None:
            self._raised = self._failure
            if left is not None:
                self._failure.add_note(str(left))
            raise self._failure
        if left is not None:
            raise left

    def __enter__(self) -> Self:
        return self._start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        if self._is_forked():
            return
        if self._agent is not None and leaving.tells_of_a_lost_proxy(error):
            self._agent.wait_for_failure(_NEWS_S)
        left = self._end(f"the block raised {type(error).__name__}")
        failure = self._failure if self._raised is None else None
        if left is not None:
            # On what the traceback ends with.
            (failure if failure and leaving.is_of_jax(error) else error).add_note(str(left))
        if failure is not None:
            self._raised = failure
            leaving.tell(error, failure)

    # ---- what is known

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
        """Where the proxy answers on this machine, as JAX writes it: ``grpc://…``."""
        return f"grpc://{self._snapshot.address}" if self._snapshot.address else ""

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices of all slices, as JAX knows them.

        Raises:
          ConnectionClosed: The connection is not started, or has ended.
        """
        if self._attachment is None:
            raise ConnectionClosed(f"the connection {self.proxy_job_name} is not live")
        return self._attachment.devices

    @property
    def slices(self) -> tuple[views.ConnectedSlice, ...]:
        """The virtual slices, by index, with their devices."""
        devices = self._attachment.devices if self._attachment else ()
        return views.slices_of(self._snapshot, devices)

    @property
    def total_chips(self) -> int:
        """Chips of all slices together; 0 before the start where no slices were named."""
        placed = [InstanceType.parse(view.instance_type) for view in self._snapshot.slices]
        return sum(kind.chips for kind in placed or self._request.tenant.virtual_slices)

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds by step: the agent's, and ``agent``, ``import_jax``, ``attach``, ``connect``."""
        return {**self._snapshot.timings, **self._timings}

    def status(self) -> views.ConnectionStatus:
        """Returns how the connection stands."""
        snapshot = self._snapshot
        return views.ConnectionStatus(
            name=self.proxy_job_name,
            state=snapshot.state,
            placed=snapshot.placed and not snapshot.preempted,
            position=snapshot.position,
            slices={view.index: view.state for view in snapshot.slices},
            agent_alive=self._agent is not None and self._agent.agent_alive,
            error=self._agent.failure if self._agent else None,
        )

    def logs(self, lines: int = 100) -> list[str]:
        """Returns the last lines of the proxy's log.

        Args:
          lines: How many at most.

        Raises:
          ConnectionClosed: The connection is not started, or has ended.
          SharedPathwaysError: They cannot be had.
        """
        return self._live_agent().logs(lines)

    def wait_until_placed(self, timeout: float | None = None) -> None:
        """Waits until the slices are placed, where ``wait="ready"`` did not, or placed again.

        Again: after a preemption or a loss that this process has heard of (`on_event` tells it). An
        error of JAX's may come a moment before the news of why.

        Args:
          timeout: Seconds; None: as long as the service lets it wait.

        Raises:
          PlacementTimeout: It took longer than `timeout`.
          SlicesTaken: The service gave up waiting.
          SharedPathwaysError: The connection failed meanwhile.
          ConnectionClosed: The connection is not started, or has ended.
        """
        agent = self._live_agent()
        gang = self._request.tenant.gang
        limit = _FOREVER if timeout is None else timeout
        self._progress.begin()
        try:
            agent.wait(lambda snapshot: snapshot.is_placed_now(gang), limit, self._progress.tick)
        except TimeoutError:
            snapshot = agent.snapshot
            raise PlacementTimeout(
                f"{self.proxy_job_name} was not placed within {timeout:g} s",
                placed=sum(view.state == "placed" for view in snapshot.slices),
                wanted=gang,
                holders=snapshot.holders,
                hint="`sps status` shows who holds what",
            ) from None
        except SharedPathwaysError:
            self._raised = agent.failure
            raise
        finally:
            self._progress.end()

    def __repr__(self) -> str:
        slices = views.slices_text(self._snapshot)
        return f"<Connection {self.proxy_job_name}: {self._snapshot.state}, {slices}>"

    def _repr_html_(self) -> str:
        return views.as_html(self._snapshot, self.address, self._board.since)

    def _ipython_display_(self) -> None:
        self._board.display()

    # ---- inside

    def _take_over(self, request: SessionRequest) -> bool:
        """Returns whether this live connection serves the request; if it has failed, closes it."""
        if self._attachment is None or not request.matches(self._request):
            return False
        failure = self._agent.failure if self._agent else None
        if failure is None:
            self._request = dataclasses.replace(self._request, client=request.client)
            return True
        self._progress.warn(f"{self.proxy_job_name} had failed: {failure}; connecting again")
        left = self._end("its request is started again")
        if left is not None:
            self._progress.warn(str(left))
        return False

    @property
    def _snapshot(self) -> Snapshot:
        if self._agent is not None:
            return self._agent.snapshot
        return Snapshot(name=self._request.name, phase=Phase.NEW)

    def _live_agent(self) -> AgentSession:
        if self._agent is None or self._agent.snapshot.ended:
            raise ConnectionClosed(f"the connection {self.proxy_job_name} is not live")
        return self._agent

    def _is_forked(self) -> bool:
        return self._process != os.getpid()

    def _begin(self) -> None:
        began = time.monotonic()
        check_room()
        self._progress.begin()
        orders = start_of(self._request, self._settings)
        log = self._settings.state_dir / "agents" / f"{self.proxy_job_name}.log"
        agent = self._agent = AgentSession(
            orders, log=log, on_event=self._heard, on_state=self._heard_state
        )
        self._undo.callback(self._close_agent)
        atexit.register(self._at_exit)
        self._undo.callback(atexit.unregister, self._at_exit)
        self._timings["agent"] = agent.launch_s
        self._import_jax()
        agent.wait(self._reached, _FOREVER, self._progress.tick)
        self._attach(agent)
        self._timings["connect"] = time.monotonic() - began

    def _reached(self, snapshot: Snapshot) -> bool:
        return snapshot.ready and (snapshot.placed or self._request.wait == "ready")

    def _import_jax(self) -> None:
        """Imports JAX while the agent works; on a thread, as an interrupted import stays broken."""
        began = time.monotonic()
        if "jax" not in sys.modules:
            thread = threading.Thread(target=_import_jax, name="sps-import-jax", daemon=True)
            thread.start()
            self._undo.callback(thread.join)
            while thread.is_alive():
                thread.join(0.1)
                self._progress.tick()
        self._timings["import_jax"] = time.monotonic() - began

    def _attach(self, agent: AgentSession) -> None:
        from shared_pathways_service.jax_client import ProxyTarget, attach  # noqa: PLC0415 - jax
        from shared_pathways_service.jax_client.plugin.dumps import ignored_flags  # noqa: PLC0415 - jax

        began = time.monotonic()
        if self._request.client.tune_allocator:
            allocator.keep_all()
        target = ProxyTarget(
            address=agent.snapshot.address,
            token=agent.token,
            token_file=agent.token_file,
            local_devices=self._request.client.local_devices,
            strict=self._strict,
            insecure_credentials=agent.insecure_credentials,
            # (Only this project's proxies have tokens, and serve several processes of a tenant.)
            one_client=agent.token is None,
            transfer_dir=agent.transfer_dir,
        )
        try:
            self._attachment = attach(target, timeout=self._request.timeout_s)
        except (TunnelError, ProxyFailed) as error:
            # The agent may know better why, in a moment.
            failure = agent.wait_for_failure(_NEWS_S)
            if failure is not None:
                raise failure from error
            raise
        self._undo.callback(self._detach)
        if agent.token is not None and (warning := ignored_flags()):
            self._warnings.append(warning)
        for warning in self._warnings:
            warnings.warn(warning, stacklevel=4)
        self._timings["attach"] = time.monotonic() - began

    def _heard(self, event: Event) -> None:
        self._progress(event)
        if isinstance(event, session.ServiceWarning) and event.reason:
            self._warnings.append(event.reason)
        if self._request.client.on_event is not None and not self._is_forked():
            self._request.client.on_event(event)

    def _heard_state(self) -> None:
        self._board.hear(self._snapshot)
        if not self._is_forked():
            self._lines.hear(self._snapshot)

    def _new_lines(self) -> LogLines:
        return LogLines(max(len(self._request.tenant.virtual_slices), 1))

    def _end(self, reason: str) -> CleanupError | None:
        """Undoes what was done, whatever it was; returns what is left behind."""
        if self._is_forked():
            return None
        if self._agent is not None:
            self._agent.check_thread()
        self._reason = reason
        undo, self._undo = self._undo, contextlib.ExitStack()
        undo.close()
        # JAX's buffers are free now, and scattered over the heaps of many threads.
        allocator.trim()
        if self._agent is not None:
            # Looked at last: the agent may tell of a failure while it is being closed.
            self._failure = self._failure or self._agent.failure
        left, self._left = self._left, None
        return left

    def _detach(self) -> None:
        attachment, self._attachment = self._attachment, None
        if attachment is not None:
            attachment.detach()

    def _close_agent(self) -> None:
        if self._agent is not None:
            self._left = self._agent.close(self._reason, self._patience_s)

    def _at_exit(self) -> None:
        self._patience_s = _AT_EXIT_S
        left = self._end("the process ended")
        if left is not None:
            # Nobody is there any more to raise it to.
            self._progress.warn(str(left))


def _import_jax() -> None:
    # An error comes again, in the caller's own thread, when JAX is used.
    with contextlib.suppress(Exception):
        importlib.import_module("jax")
