"""Events of the embedded service: its processes, its clients, and injected slice failures."""

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
    "JobEnded",
    "JobRetrying",
    "JobStarted",
    "JobSubmitted",
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
    """An event that the supervisor of the embedded service observed."""

    source: str = "supervisor"


# ---- the service


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddedServiceStarted(SupervisorEvent, name="service.started"):
    """The embedded service is ready for clients.

    Attributes:
      address: The supervisor's address.
      pid: The supervisor's process id.
    """

    address: str = ""
    pid: int | None = None


class EmbeddedServiceEnding(SupervisorEvent, name="service.ending"):
    """The embedded service ends, for the given `reason`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientEvent(SupervisorEvent):
    """An event of a client of the embedded service.

    Attributes:
      who: The client's name for itself.
    """

    who: str = ""


class ClientJoined(ClientEvent, name="client.joined"):
    """A client began to use the embedded service."""


class ClientLeft(ClientEvent, name="client.left"):
    """A client no longer uses the embedded service."""


# ---- its processes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessEvent(SupervisorEvent):
    """An event of a worker or of the resource manager; `source` says which.

    Attributes:
      name: The process's name, as in the name of its log file.
      exit_code: Negative: the signal that killed it.
      restarts: Number of earlier restarts.
    """

    name: str = ""
    exit_code: int | None = None
    restarts: int | None = None


class ProcessEnded(ProcessEvent, name="process.ended"):
    """A process of the embedded service ended, and will be restarted."""


class ProcessGivenUp(ProcessEvent, name="process.given_up"):
    """A process of the embedded service ended too often, and will not be restarted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyStarted(SupervisorEvent, name="proxy.started"):
    """A proxy's process runs; it does not serve yet.

    Attributes:
      pid: The proxy's process id.
    """

    pid: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyEnded(SupervisorEvent, name="proxy.ended"):
    """A proxy's process ended, for the given `reason`.

    Attributes:
      exit_code: Negative: the signal that killed it. None: it never ran.
    """

    exit_code: int | None = wire(default=None, always=True)


# ---- submitted jobs


class JobSubmitted(SupervisorEvent, name="job.submitted"):
    """A job was submitted; `tenant` is its name, which is also that of its connection."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobStarted(SupervisorEvent, name="job.started"):
    """A submitted job has its slices, and its program runs.

    Attributes:
      attempt: The number of the attempt, from 1.
    """

    attempt: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRetrying(SupervisorEvent, name="job.retrying"):
    """An attempt of a submitted job ended for the given `reason`; the next one follows.

    Attributes:
      pause_s: Seconds until then.
    """

    pause_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobEnded(SupervisorEvent, name="job.ended"):
    """A submitted job ended; `reason` says why, unless it succeeded.

    Attributes:
      state: ``succeeded``, ``failed``, ``cancelled`` or ``lost``.
      exit_code: Of its last attempt; None: it has none.
    """

    state: str = ""
    exit_code: int | None = wire(default=None, always=True)


# ---- injected failures


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceDisturbed(SupervisorEvent, name="slice.disturbed"):
    """The workers of a slice were killed or stopped on request; `reason` says which.

    Attributes:
      hold_s: Seconds until they are restarted or resumed.
      workers: Number of affected workers.
    """

    hold_s: float | None = None
    workers: int | None = None
