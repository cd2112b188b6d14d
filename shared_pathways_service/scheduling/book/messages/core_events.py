"""The events that go into the resource manager's core: data only."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.reserved import Reservation

__all__ = [
    "Claim",
    "ReservationCancelled",
    "ReservationMade",
    "ResourceManagerEvent",
    "SliceCordoned",
    "SliceDrained",
    "SliceUncordoned",
    "TenantActivity",
    "TenantAsked",
    "TenantReleased",
    "TenantStreamEnded",
    "Tick",
    "WorkerBeat",
    "WorkerEnded",
    "WorkerJoined",
]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A placement that a proxy says it holds."""

    virtual_index: int
    slice_id: str
    generation: int


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
