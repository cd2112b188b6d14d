"""What goes into the resource manager's core, and what comes out: data only.

The server turns calls into events, hands each to the core together with the time, and carries out
the instructions in the order given. The core never looks at a clock and never does I/O.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping

from shared_pathways_service.core.rm.decisions import Decision
from shared_pathways_service.core.topology import InstanceType

__all__ = [
    "Announce",
    "Claim",
    "EndTenantStream",
    "Instruction",
    "Persist",
    "PersistedGrant",
    "PersistedMark",
    "PersistedNotice",
    "RefusalKind",
    "RefuseTenant",
    "RefuseWorker",
    "ResourceManagerEvent",
    "Restored",
    "SliceCordoned",
    "SliceDrained",
    "SliceMark",
    "SliceState",
    "SliceUncordoned",
    "TellPlaced",
    "TellPreempting",
    "TellQueued",
    "TellRunning",
    "TellUnplaced",
    "TenantAsked",
    "TenantReleased",
    "TenantState",
    "TenantStreamEnded",
    "Tick",
    "VirtualSliceState",
    "WelcomeTenant",
    "WelcomeWorker",
    "WorkerBeat",
    "WorkerEnded",
    "WorkerJoined",
]


class SliceState(enum.StrEnum):
    """State of a physical slice."""

    STARTING = "starting"
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


class SliceMark(enum.StrEnum):
    """What an operator said of a physical slice."""

    NONE = ""
    CORDONED = "cordoned"
    DRAINING = "draining"


class VirtualSliceState(enum.StrEnum):
    """State of a virtual slice, which is what a tenant holds."""

    QUEUED = "queued"
    UNPLACED = "unplaced"
    PLACED = "placed"


class TenantState(enum.StrEnum):
    """State of a tenant."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    GONE = "gone"


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
class Tick:
    """Time has passed: deadlines are looked at. The server ticks at the core's `next_deadline`."""


ResourceManagerEvent = (
    WorkerJoined
    | WorkerBeat
    | WorkerEnded
    | TenantAsked
    | TenantStreamEnded
    | TenantReleased
    | SliceCordoned
    | SliceDrained
    | SliceUncordoned
    | Tick
)

# ---- instructions (not frozen: that doubles what making one costs, and an event makes several)


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedNotice:
    """That a tenant was told that its slices will be taken.

    Attributes:
      by: The tenant that gets them.
      said: How the holder was told of that one.
      ends_at: When they are taken at the earliest, by the core's clock.
    """

    by: str
    said: str
    ends_at: float


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedMark:
    """What an operator said of a slice.

    Attributes:
      mark: `SliceMark.NONE`: what was said before is over.
      moves_at: When its holder is moved to another slice, if it is; by the core's clock.
    """

    slice_id: str
    mark: SliceMark
    moves_at: float | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedGrant:
    """All that the RM must remember of one tenant that it has answered.

    Attributes:
      order: Arrival number; the queue's order among equal priorities.
      running: Whether its gang was placed once: False means that it is in the queue.
      placements: Virtual index to (slice id, generation), of what is placed.
      asked_at: When it asked, by the core's clock, for people and for the queue's timeout.
      waits_since: When its present or last wait began; None: when it asked.
      lost: Virtual indices that were placed once and are not now: they may take a spare.
      incarnations: Slice id to the incarnations of its workers, of what is placed: a worker that
        is another after the RM's restart was lost meanwhile.
      preempted: Whether it waits because it was preempted.
      notice: While its slices are about to be taken.
      ends_at: When its stated lifetime is over, by the core's clock; None: it stated none.
      held_since: Slice id to when it was placed there, by the core's clock.
    """

    tenant: str
    incarnation: str
    virtual_slices: tuple[InstanceType, ...]
    num_elastic: int
    priority: int
    queue_timeout_s: float | None
    user: str
    team: str
    host: str
    pid: int
    order: int
    running: bool
    placements: Mapping[int, tuple[str, int]]
    asked_at: float
    waits_since: float | None = None
    lost: tuple[int, ...] = ()
    incarnations: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    preempted: bool = False
    notice: PersistedNotice | None = None
    ends_at: float | None = None
    held_since: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def wait_began(self) -> float:
        """When its present or last wait began, by the core's clock."""
        return self.asked_at if self.waits_since is None else self.waits_since


@dataclasses.dataclass(kw_only=True, slots=True)
class Persist:
    """Write these before any instruction behind this one is carried out.

    Attributes:
      grants: Tenants to write, each replacing what was written of it.
      forgotten: Names of tenants to delete.
      last_generation: The highest generation ever given.
      last_order: The highest arrival number ever given.
      state_lost: What was there before is not known, and not all of it may be known again: a
        restart must hear everybody's claims once more.
      marks: Slices whose mark changed.
      decisions: For the history, in this order; what they say is what the rest of this makes so.
      can_wait: Whether there are decisions only, none of which anybody is told behind this: they
        may be written with the next one.
    """

    grants: tuple[PersistedGrant, ...]
    forgotten: tuple[str, ...]
    last_generation: int
    last_order: int
    state_lost: bool = False
    marks: tuple[PersistedMark, ...] = ()
    decisions: tuple[Decision, ...] = ()
    can_wait: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """What all `Persist` before a restart have left on the disk.

    Attributes:
      grants: In any order.
      last_generation: As of the last `Persist`.
      last_order: As of the last `Persist`.
      state_lost: As of the last `Persist`; True before the first one, unless the service is new.
      marks: Of all slices that have one.
    """

    grants: tuple[PersistedGrant, ...] = ()
    last_generation: int = 0
    last_order: int = 0
    state_lost: bool = False
    marks: tuple[PersistedMark, ...] = ()


@dataclasses.dataclass(kw_only=True, slots=True)
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


@dataclasses.dataclass(kw_only=True, slots=True)
class WelcomeTenant:
    """The tenant is known from here on."""

    tenant: str
    incarnation: str
    recovering: bool


@dataclasses.dataclass(kw_only=True, slots=True)
class TellQueued:
    """The tenant waits; sent again whenever position or reason change."""

    tenant: str
    position: int
    reason: str
    holders: tuple[str, ...]


@dataclasses.dataclass(kw_only=True, slots=True)
class TellPlaced:
    """A virtual slice has come to a physical one."""

    tenant: str
    virtual_index: int
    instance_type: InstanceType
    slice_id: str
    generation: int


@dataclasses.dataclass(kw_only=True, slots=True)
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


@dataclasses.dataclass(kw_only=True, slots=True)
class EndTenantStream:
    """End this stream with ALREADY_EXISTS: the name is another live proxy's."""

    tenant: str
    incarnation: str
    reason: str


@dataclasses.dataclass(kw_only=True, slots=True)
class Announce:
    """An event for watchers and logs; the server adds the time.

    Attributes:
      kind: As in `shared_pathways_service.events.Event`.
      data: Flat, JSON scalars only.
    """

    kind: str
    tenant: str | None = None
    slice: str | None = None
    reason: str | None = None
    data: Mapping[str, str | int | float | bool | None] = dataclasses.field(default_factory=dict)


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
    | RefuseTenant
    | EndTenantStream
    | Announce
)
