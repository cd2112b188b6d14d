"""What the agent needs of a home: the one interface that `embedded` and `kubernetes` both meet."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.events import Event
from shared_pathways_service.runtime.processes import Identity

__all__ = [
    "Home",
    "HomeCounters",
    "ProxyHandle",
    "ServiceInfo",
    "Tell",
    "unheard",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceInfo:
    """The service that the preflight found.

    Attributes:
      address: Of its resource manager.
      started: Whether the preflight had to start it.
      instance_types: What it has, e.g. ``("tpuv6e:2x2",)``.
    """

    address: str
    version: str
    instance_types: tuple[str, ...]
    started: bool = False
    namespace: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyHandle:
    """A proxy that was created.

    Attributes:
      uid: What a delete names, so that it is never somebody else's.
      token: What the client must show; None where the home has none.
      pod: The pod's name, or empty.
      log: Where its log is, for people.
      insecure_credentials: Whether it speaks plaintext, so that the client must do so too.
      transfer_dir: A directory in memory that this machine shares with it; empty: there is none.
    """

    name: str
    uid: str
    token: str | None = None
    pod: str = ""
    log: str = ""
    insecure_credentials: bool = True
    transfer_dir: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeCounters:
    """What a home has counted since it was made; where it has no tunnel, that is none.

    Attributes:
      tunnel_opened: Connections that went through the tunnel.
      tunnel_connections: Of these, those that are open.
      tunnel_redials: Dials of the tunnel that followed one that failed.
      tunnel_sent_bytes: Through the tunnel to the proxy; what the user sent, without framing.
      tunnel_received_bytes: Through the tunnel from the proxy, likewise.
      manager_reconnects: Times that the resource manager's news broke off and were listened to
        anew.
      beat_at: When the proxy was last said to be still wanted, in seconds since the epoch; None:
        not yet, or nobody needs to be told.
    """

    tunnel_opened: int = 0
    tunnel_connections: int = 0
    tunnel_redials: int = 0
    tunnel_sent_bytes: int = 0
    tunnel_received_bytes: int = 0
    manager_reconnects: int = 0
    beat_at: float | None = None


#: Takes news; must not block.
Tell = Callable[[Event], object]


def unheard(news: Event) -> None:
    """Ignores an event."""


class Home(Protocol):
    """Where the service lives. One object a session; every method raises `SharedPathwaysError`s.

    Deadlines are the caller's: it cancels.
    """

    name: str

    async def preflight(self, request: SessionRequest, tell: Tell) -> ServiceInfo:
        """Finds the service, or starts it where the home can, and checks the request against it.

        Args:
          request: What the session asks for.
          tell: Receives a `ServiceWaiting` whenever what is waited for changes.
        """

    async def create_proxy(
        self, request: SessionRequest, *, session: str, owner: Identity
    ) -> ProxyHandle:
        """Creates the proxy; called again with the same session it returns the same proxy.

        Args:
          request: What the session asks for.
          session: UUID of the session; what is found under it belongs to it.
          owner: The process whose end ends the session.
        """

    def follow(self, handle: ProxyHandle) -> AsyncIterator[Event]:
        """Tells what becomes of the proxy and its slices, from its creation on, until it ends."""

    async def open_tunnel(self, handle: ProxyHandle, local_port: int | None) -> str:
        """Returns ``unix:/path`` or ``127.0.0.1:port``, where the proxy answers on this machine."""

    async def logs(self, handle: ProxyHandle, lines: int) -> list[str]:
        """Returns the last lines of the proxy's log."""

    async def delete_proxy(self, name: str, uid: str, session: str) -> bool:
        """Deletes the proxy and gives its slices back; False when there was none."""

    def counters(self) -> HomeCounters:
        """Returns what was counted; at any time, after `close` too."""

    async def close(self) -> None:
        """Lets go of the service, tunnels and watches included; the proxy is not touched.

        `delete_proxy` may still be called afterwards, and `close` then again.
        """
