"""What the agent needs of a home: the one interface that `embedded` and `kubernetes` both meet."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.events import Event

__all__ = [
    "Home",
    "HomeCounters",
    "ProxyHandle",
    "ProxySpec",
    "ServiceInfo",
    "Tell",
    "unheard",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxySpec:
    """The proxy that a session asks for.

    Attributes:
      name: DNS label; the tenant's name too.
      session: UUID of the session; what is found under it is ours.
      virtual_slices: Instance types, one a virtual slice, e.g. ``("tpuv6e:2x2", "tpuv6e:2x2")``;
        empty: one slice of the service's first type.
      num_elastic_slices: How many of them may be missing at the start.
      priority: Higher goes first; that of `priority_class` where the home does not know better.
      priority_class: A PriorityClass of the cluster, whose value is the priority; empty: none.
      queue_timeout_s: None: fail at once when slices are taken; else seconds to wait.
      options: What it is started with beside its slices.
      image: Its container image; empty: the one that goes with the resource manager's.
      gcs_bucket: ``gs://…`` for scratch data; empty: where the resource manager has its own.
      local_port: None: a Unix socket; else a loopback TCP port, 0 for any.
      owner_pid: The process whose end ends the session.
      owner_start: When it started, as `processes.Identity` has it.
      max_lifetime_s: None: as long as the session lasts.
    """

    name: str
    session: str
    virtual_slices: tuple[str, ...]
    num_elastic_slices: int = 0
    priority: int = 0
    priority_class: str = ""
    queue_timeout_s: float | None = None
    options: ProxyOptions = dataclasses.field(default_factory=ProxyOptions)
    image: str = ""
    gcs_bucket: str = ""
    local_port: int | None = None
    owner_pid: int = 0
    owner_start: str = ""
    user: str = ""
    team: str = ""
    host: str = ""
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    max_lifetime_s: float | None = None


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

    async def preflight(self, spec: ProxySpec, tell: Tell) -> ServiceInfo:
        """Finds the service, or starts it where the home can, and checks the request against it.

        Args:
          spec: The request.
          tell: Receives a `ServiceWaiting` whenever what is waited for changes.
        """

    async def create_proxy(self, spec: ProxySpec) -> ProxyHandle:
        """Creates the proxy; called again with the same session it returns the same proxy."""

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
