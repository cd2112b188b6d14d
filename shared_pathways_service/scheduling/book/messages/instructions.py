"""The instructions that come out of the resource manager's core: data only.

An event makes several. So they are not frozen, and those of most events are made by position:
either would double what making one costs.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import Event
from shared_pathways_service.scheduling.book.persisted import Persist

__all__ = [
    "Announce",
    "EndTenantStream",
    "Instruction",
    "RefusalKind",
    "RefuseTenant",
    "RefuseWorker",
    "TellIdle",
    "TellPlaced",
    "TellPreempting",
    "TellQueued",
    "TellRunning",
    "TellUnplaced",
    "WelcomeTenant",
    "WelcomeWorker",
]


class RefusalKind(enum.StrEnum):
    """Why a tenant is refused."""

    SLICES_TAKEN = "slices_taken"
    UNKNOWN_TYPE = "unknown_type"
    TOO_MANY = "too_many"
    LOST = "lost"
    RELEASED = "released"
    LIMIT = "limit"


@dataclasses.dataclass(slots=True)
class WelcomeWorker:
    """The worker is in.

    Attributes:
      last_generation: The highest generation given so far.
    """

    slice_id: str
    host_index: int
    incarnation: str
    last_generation: int


@dataclasses.dataclass(kw_only=True, slots=True)
class RefuseWorker:
    """End this worker's stream with an error; the worker then exits non-zero.

    Also sent to a worker that was welcome: it is hung, or another process has taken its place.
    """

    slice_id: str
    host_index: int
    incarnation: str
    reason: str


@dataclasses.dataclass(slots=True)
class WelcomeTenant:
    """The tenant is known from here on."""

    tenant: str
    incarnation: str
    recovering: bool


@dataclasses.dataclass(slots=True)
class TellQueued:
    """The tenant waits; sent again whenever position or reason change."""

    tenant: str
    position: int
    reason: str
    holders: tuple[str, ...]


@dataclasses.dataclass(slots=True)
class TellPlaced:
    """A virtual slice has come to a physical one."""

    tenant: str
    virtual_index: int
    instance_type: InstanceType
    slice_id: str
    generation: int


@dataclasses.dataclass(slots=True)
class TellUnplaced:
    """A virtual slice has lost its physical one."""

    tenant: str
    virtual_index: int
    instance_type: InstanceType
    slice_id: str
    generation: int
    reason: str


@dataclasses.dataclass(kw_only=True, slots=True)
class TellPreempting:
    """Slices of the tenant will be taken: all of them, or some that are placed anew at once.

    Attributes:
      grace_s: Seconds from now.
      by: By whom, for people.
      indices: Of which virtual slices; empty: of all.
      withdrawn: It was said before, and is not so any more.
    """

    tenant: str
    grace_s: float
    by: str
    indices: tuple[int, ...] = ()
    withdrawn: bool = False


@dataclasses.dataclass(kw_only=True, slots=True)
class TellIdle:
    """The tenant does not work, and its slices will be taken back, or were.

    Attributes:
      idle_s: Seconds that it has been idle.
      release_s: Seconds from now; 0 if there is nothing to come.
      withdrawn: It was said before, and is not so any more.
      released: They were taken back; it gets others when it works again.
      count: Its count of activity, as it told last.
    """

    tenant: str
    idle_s: float
    release_s: float = 0.0
    withdrawn: bool = False
    released: bool = False
    count: int = 0


@dataclasses.dataclass(slots=True)
class TellRunning:
    """The tenant's gang is placed. Sent once, and again to a proxy that came back.

    One that came back while too many of its slices are lost hears it when the gang is whole again.
    """

    tenant: str
    placed: int
    wanted: int


@dataclasses.dataclass(kw_only=True, slots=True)
class RefuseTenant:
    """Tell the tenant why, then end its stream.

    Attributes:
      incarnation: Of the proxy to tell.
      spares: Slices kept as spares with which the request would have been granted, by instance
        type; empty if spares are not what is in the way.
    """

    tenant: str
    incarnation: str
    kind: RefusalKind
    message: str
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: tuple[str, ...] = ()
    position: int | None = None
    types: tuple[str, ...] = ()
    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(kw_only=True, slots=True)
class EndTenantStream:
    """End this stream with ALREADY_EXISTS: the name is another live proxy's."""

    tenant: str
    incarnation: str
    reason: str


@dataclasses.dataclass(slots=True)
class Announce:
    """An event for watchers and logs.

    Attributes:
      make: Makes the event; called by the server, as an event has the time of a clock.
    """

    make: Callable[[], Event]


Instruction = (
    Persist
    | WelcomeWorker
    | RefuseWorker
    | WelcomeTenant
    | TellQueued
    | TellPlaced
    | TellUnplaced
    | TellRunning
    | TellPreempting
    | TellIdle
    | RefuseTenant
    | EndTenantStream
    | Announce
)
