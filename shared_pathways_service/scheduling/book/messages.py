"""What goes into the resource manager's core, and what comes out: data only.

The server turns calls into events, hands each to the core together with the time, and carries out
the instructions in the order given. The core never looks at a clock and never does I/O.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import Event
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.book.reserved import Reservation

__all__ = [
    "Announce",
    "Claim",
    "EndTenantStream",
    "Instruction",
    "RefusalKind",
    "RefuseTenant",
    "RefuseWorker",
    "ReservationCancelled",
    "ReservationMade",
    "ResourceManagerEvent",
    "SliceCordoned",
    "SliceDrained",
    "SliceUncordoned",
    "TellIdle",
    "TellPlaced",
    "TellPreempting",
    "TellQueued",
    "TellRunning",
    "TellUnplaced",
    "TenantActivity",
    "TenantAsked",
    "TenantReleased",
    "TenantStreamEnded",
    "Tick",
    "WelcomeTenant",
    "WelcomeWorker",
    "WorkerBeat",
    "WorkerEnded",
    "WorkerJoined",
]


class RefusalKind(enum.StrEnum):
    """Why a tenant is refused."""

    SLICES_TAKEN = "slices_taken"
    UNKNOWN_TYPE = "unknown_type"
    TOO_MANY = "too_many"
    LOST = "lost"
    RELEASED = "released"
    LIMIT = "limit"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A placement that a proxy says it holds."""

    virtual_index: int
    slice_id: str
    generation: int


# ---- events


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJoined:
    """A worker said hello. A newer incarnation of a host replaces the older one.

    Attributes:
      welcomed_at: `WelcomeWorker.last_generation` of this incarnation's first welcome, by whichever
        resource manager: no placement up to that one is on it. None: it was never let in.
    """

    slice_id: str
    instance_type: InstanceType
    host_index: int
    incarnation: str
    welcomed_at: int | None = None
    address: str = ""
    host: str = ""
    node_pool: str = ""
    pid: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerBeat:
    """A worker is alive; unknown or replaced incarnations are passed over."""

    slice_id: str
    host_index: int
    incarnation: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnded:
    """A worker's stream ended: it is dead at once.

    Of a stream that a later hello of the same incarnation has replaced the server says nothing.
    """

    slice_id: str
    host_index: int
    incarnation: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantAsked:
    """A proxy said hello: for the first time, or again after its stream or the RM broke.

    Attributes:
      queue_timeout_s: None: refused at once when slices are taken; else seconds, infinity allowed.
      running: Whether it has heard that its gang was placed.
      claims: What it holds already.
      max_lifetime_s: It ends within so many seconds; None: not known.
      last_generation: The highest that it heard of; 0: none.
      idle_count: While its slices are taken back for idleness: its count of activity at that time;
        None: they are not.
    """

    tenant: str
    incarnation: str
    virtual_slices: tuple[InstanceType, ...]
    num_elastic: int = 0
    priority: int = 0
    queue_timeout_s: float | None = None
    user: str = ""
    team: str = ""
    host: str = ""
    pid: int = 0
    running: bool = False
    claims: tuple[Claim, ...] = ()
    max_lifetime_s: float | None = None
    last_generation: int = 0
    idle_count: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantActivity:
    """A proxy tells how long ago its tenant was last at work.

    Attributes:
      count: Looks that found it at work; it grows if there was such a one since it was told last.
      idle_s: Seconds since the last of them.
    """

    tenant: str
    incarnation: str
    count: int
    idle_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantStreamEnded:
    """A proxy's stream broke: its TTL starts.

    Of a stream that a later hello of the same incarnation has replaced the server says nothing.
    """

    tenant: str
    incarnation: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantReleased:
    """Its owner let go, or its proxy is confirmed dead: its slices are free at once.

    Attributes:
      incarnation: Only this one; empty: whichever it is.
    """

    tenant: str
    reason: str
    incarnation: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceCordoned:
    """An operator wants nobody new on a slice, which is known."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceDrained:
    """An operator wants a slice, which is known, for himself: its holder moves if it can."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceUncordoned:
    """An operator is done with a slice, which is known."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReservationMade:
    """An operator reserves slices; that can be, and nobody else has its name."""

    reservation: Reservation


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReservationCancelled:
    """An operator takes a reservation back."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: deadlines are looked at. The server ticks at the core's `next_deadline`."""


ResourceManagerEvent = (
    WorkerJoined
    | WorkerBeat
    | WorkerEnded
    | TenantAsked
    | TenantActivity
    | TenantStreamEnded
    | TenantReleased
    | SliceCordoned
    | SliceDrained
    | SliceUncordoned
    | ReservationMade
    | ReservationCancelled
    | Tick
)

# ---- instructions
#
# An event makes several. So they are not frozen, and those of most events are made by position:
# either would double what making one costs.


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
