"""The events that go into the resource manager's core: data only."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.reserved import Reservation

__all__ = [
    "Claim",
    "ExecutorEnded",
    "ExecutorServing",
    "PlacementUnreachable",
    "ProxyReported",
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
    """A worker connected. A newer incarnation of a host replaces the older one.

    Attributes:
      welcomed_at: `WelcomeWorker.last_generation` of this incarnation's first welcome, by any
        resource manager: no placement up to that one relies on it. None: it was never admitted.
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
    """A worker is alive; events of unknown or replaced incarnations are ignored."""

    slice_id: str
    host_index: int
    incarnation: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerEnded:
    """A worker's stream ended: it is dead at once.

    The server does not report a stream that a later hello of the same incarnation has replaced.
    """

    slice_id: str
    host_index: int
    incarnation: str
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorServing:
    """A worker's executor of a generation serves; the server keeps its address and token."""

    slice_id: str
    host_index: int
    incarnation: str
    generation: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ExecutorEnded:
    """A worker's executor of a generation ended although the worker was assigned that one.

    Attributes:
      reason: How it ended, after its subject.
      exit_code: Its exit code; negative: the number of a signal; None: not known.
    """

    slice_id: str
    host_index: int
    incarnation: str
    generation: int
    reason: str
    exit_code: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantAsked:
    """A proxy connected: for the first time, or again after its stream or the RM failed.

    Attributes:
      running: Whether it was notified that its gang was placed.
      claims: The placements that it holds already.
      last_generation: The highest generation that it was sent; 0: none.
      idle_count: While its slices are taken back for idleness: its count of activity at that time;
        None: they are not.
    """

    request: TenantRequest
    incarnation: str
    pid: int = 0
    running: bool = False
    claims: tuple[Claim, ...] = ()
    last_generation: int = 0
    idle_count: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantActivity:
    """A proxy reports how long ago its tenant was last at work.

    Attributes:
      count: Checks that found it at work; it has grown if one did since the last report.
      idle_s: Seconds since the last such check.
    """

    tenant: str
    incarnation: str
    count: int
    idle_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ProxyReported:
    """A proxy reports an event, which watchers receive and the history records.

    Attributes:
      event: The event as JSON, without times, which the receiver of the announcement sets.
    """

    tenant: str
    incarnation: str
    event: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlacementUnreachable:
    """A proxy cannot use the executors of a placement, which it has given up.

    Attributes:
      host_index: The host whose executor it cannot reach; None: it is not one in particular.
    """

    tenant: str
    incarnation: str
    virtual_index: int
    generation: int
    host_index: int | None
    reason: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantStreamEnded:
    """A proxy's stream broke: its TTL starts.

    The server does not report a stream that a later hello of the same incarnation has replaced.
    """

    tenant: str
    incarnation: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantReleased:
    """A tenant's owner released it, or its proxy is confirmed dead: its slices are free at once.

    Attributes:
      incarnation: The only incarnation to release; empty: any.
    """

    tenant: str
    reason: str
    incarnation: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceCordoned:
    """An operator cordons a known slice: no new tenant is placed on it."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceDrained:
    """An operator drains a known slice: its holder moves if it can."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SliceUncordoned:
    """An operator uncordons a known slice."""

    slice_id: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReservationMade:
    """An operator makes a reservation, which is valid and has a unique name."""

    reservation: Reservation


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReservationCancelled:
    """An operator cancels a reservation."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: deadlines are checked. The server ticks at the core's `next_deadline`."""


ResourceManagerEvent = (
    WorkerJoined
    | WorkerBeat
    | WorkerEnded
    | ExecutorServing
    | ExecutorEnded
    | TenantAsked
    | TenantActivity
    | ProxyReported
    | PlacementUnreachable
    | TenantStreamEnded
    | TenantReleased
    | SliceCordoned
    | SliceDrained
    | SliceUncordoned
    | ReservationMade
    | ReservationCancelled
    | Tick
)
