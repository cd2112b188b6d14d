"""Events of the embedded service: its processes, its clients, and slices disturbed on purpose."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.base import Event
from shared_pathways_service.events.codec import wire

__all__ = [
    "ClientEvent",
    "ClientJoined",
    "ClientLeft",
    "EmbeddedServiceEnding",
    "EmbeddedServiceStarted",
    "ProcessEnded",
    "ProcessEvent",
    "ProcessGivenUp",
    "ProxyEnded",
    "ProxyStarted",
    "SliceDisturbed",
    "SupervisorEvent",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SupervisorEvent(Event):
    """An event that the supervisor of the embedded service saw."""

    source: str = "supervisor"


# ---- the service


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedServiceStarted(SupervisorEvent, name="service.started"):
    """The embedded service is ready for clients.

    Attributes:
      address: Of the supervisor's socket.
      pid: Of the supervisor.
    """

    address: str = ""
    pid: int | None = None


class EmbeddedServiceEnding(SupervisorEvent, name="service.ending"):
    """The embedded service ends; `reason` says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientEvent(SupervisorEvent):
    """An event of a client of the embedded service.

    Attributes:
      who: The client, as it names itself.
    """

    who: str = ""


class ClientJoined(ClientEvent, name="client.joined"):
    """A client began to use the embedded service."""


class ClientLeft(ClientEvent, name="client.left"):
    """A client no longer uses the embedded service."""


# ---- its processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEvent(SupervisorEvent):
    """An event of a worker or of the resource manager; `source` says of which.

    Attributes:
      name: The process' name, as of its log file.
      exit_code: Negative: the signal that killed it.
      restarts: How often it was started again before.
    """

    name: str = ""
    exit_code: int | None = None
    restarts: int | None = None


class ProcessEnded(ProcessEvent, name="process.ended"):
    """A process of the embedded service ended, and will be started again."""


class ProcessGivenUp(ProcessEvent, name="process.given_up"):
    """A process of the embedded service ended too often, and is not started again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyStarted(SupervisorEvent, name="proxy.started"):
    """A proxy's process runs; it does not serve yet.

    Attributes:
      pid: Of the proxy.
    """

    pid: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyEnded(SupervisorEvent, name="proxy.ended"):
    """A proxy's process ended; `reason` says why.

    Attributes:
      exit_code: Negative: the signal that killed it. None: it never ran.
    """

    exit_code: int | None = wire(default=None, always=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceDisturbed(SupervisorEvent, name="slice.disturbed"):
    """The workers of a slice were killed or stopped on purpose; `reason` says which.

    Attributes:
      hold_s: Seconds until they are started again, or go on.
      workers: How many workers it was done to.
    """

    hold_s: float | None = None
    workers: int | None = None
