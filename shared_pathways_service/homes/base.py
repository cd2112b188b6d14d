"""The interface of a home, which the packages beside it implement and the agent uses."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.runtime.processes import Identity

__all__ = [
    "Home",
    "HomeCounters",
    "ProxyHandle",
    "ServiceInfo",
    "Tell",
    "ignore_event",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceInfo:
    """A service that the preflight found.

    Attributes:
      address: The address of its resource manager.
      started: Whether the preflight had to start it.
      instance_types: Its instance types, e.g. ``("tpuv6e:2x2",)``.
      more_slices: How its user gets a service with more slices; empty: others decide that.
    """

    address: str
    version: str
    instance_types: tuple[str, ...]
    started: bool = False
    namespace: str = ""
    more_slices: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyHandle:
    """A proxy that was created.

    Attributes:
      uid: The identity for deletion, so that no other proxy is deleted.
      token: The token that the client must send; None if the home has none.
      pod: The pod's name, or empty.
      log: The location of its log, for people.
      insecure_credentials: Whether it uses plaintext, so that the client must do so too.
      transfer_dir: A directory in memory that this machine shares with it; empty: none.
      is_remote: Whether it is behind a tunnel, where each answer takes a round trip.
    """

    name: str
    uid: str
    token: str | None = None
    pod: str = ""
    log: str = ""
    insecure_credentials: bool = True
    transfer_dir: str = ""
    is_remote: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeCounters:
    """Counters of a home since its creation; those of the tunnel are 0 if it has none.

    Attributes:
      tunnel_opened: Connections through the tunnel so far.
      tunnel_connections: Open connections through the tunnel.
      tunnel_redials: Dials of the tunnel after a failed one.
      tunnel_sent_bytes: Bytes sent to the proxy through the tunnel, without framing.
      tunnel_received_bytes: Bytes received from the proxy through the tunnel, without framing.
      link_losses: Times that the link had no connection left; this and the following ones are 0 if
        the way is not resumable.
      link_carriers: Connections of the link that work now.
      link_failed_dials: Dials of the link that failed.
      link_replay_bytes: Bytes that the link keeps until the other end has acknowledged them.
      link_early_answers: JAX's lookups of values that the link answered without a round trip.
      manager_reconnects: Reconnections to the resource manager's events.
      beat_at: When the proxy's deadline was last extended, in seconds since the epoch; None: not
        yet, or not needed.
    """

    tunnel_opened: int = 0
    tunnel_connections: int = 0
    tunnel_redials: int = 0
    tunnel_sent_bytes: int = 0
    tunnel_received_bytes: int = 0
    link_losses: int = 0
    link_carriers: int = 0
    link_failed_dials: int = 0
    link_replay_bytes: int = 0
    link_early_answers: int = 0
    manager_reconnects: int = 0
    beat_at: float | None = None


#: Called with events; must not block.
Tell = Callable[[Event], object]


def ignore_event(news: Event) -> None:
    """Ignores an event."""


class Home(Protocol):
    """A place where services run. One object per session.

    Every method raises `SharedPathwaysError`s. The caller sets deadlines, by cancelling.
    """

    name: str

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Finds the service, or starts it if the home can, and checks the request.

        Args:
          request: The session's request.
          tell: Called with a `ServiceWaiting` whenever the reason for waiting changes.
        """

    async def create_proxy(
        self, request: SessionRequest, *, session: str, owner: Identity
    ) -> ProxyHandle:
        """Creates the proxy; another call for the same session returns the same proxy.

        Args:
          request: The session's request.
          session: UUID of the session, to which existing objects with it belong.
          owner: The process whose end ends the session.
        """

    def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:
        """Yields events of the proxy and its slices, from its creation until its end."""

    async def open_tunnel(self, handle: ProxyHandle, local_port: int | None) -> str:
        """Returns ``unix:/path`` or ``127.0.0.1:port``, where the proxy answers on this machine."""

    async def service_failure(self, request: SessionRequest) -> SharedPathwaysError | None:
        """Returns why the service of an ended proxy fails; None: it does not, or this is not known.

        May wait until a server that has just started fails or has survived that.
        """

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:
        """Returns the last lines of the proxy's log."""

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:
        """Deletes the proxy and releases its slices; returns False if there was none."""

    def counters(self) -> HomeCounters:
        """Returns the counters; callable at any time, also after `close`."""

    async def close(self) -> None:
        """Closes all connections to the service, tunnels and watches included, but not the proxy.

        `delete_proxy` may still be called afterwards, and then `close` again.
        """
