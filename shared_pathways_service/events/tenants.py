"""Events of a tenant and its slices, as the resource manager reports them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.events.base import Event
from shared_pathways_service.events.codec import wire

__all__ = [
    "ExecutorLost",
    "ExecutorStarted",
    "SliceMoving",
    "SliceMovingWithdrawn",
    "SlicePlaced",
    "SliceUnplaced",
    "TenantDequeued",
    "TenantEvent",
    "TenantGone",
    "TenantIdled",
    "TenantIdling",
    "TenantIdlingWithdrawn",
    "TenantPreempted",
    "TenantPreempting",
    "TenantPreemptingWithdrawn",
    "TenantQueued",
    "TenantRefused",
    "TenantRunning",
    "VirtualSliceEvent",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantEvent(Event):
    """An event of a tenant, which its user receives unless nothing changed by it."""

    source: str = "rm"


# ---- the queue


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantQueued(TenantEvent, name="tenant.queued"):
    """The tenant waits for slices; `reason` says which.

    Attributes:
      position: Position in the queue, from 1; None: unknown.
      holders: Tenants that hold such slices, one text per tenant.
      wanted: Slices that it waits for, by instance type.
      free: Free slices of these types.
    """

    position: int | None = None
    holders: tuple[str, ...] = ()
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)


class TenantDequeued(TenantEvent, name="tenant.dequeued"):
    """Enough slices are free for the tenant; they are not placed yet."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantRefused(TenantEvent, name="tenant.refused"):
    """The tenant does not get its slices.

    Attributes:
      refusal: The kind of refusal, e.g. ``slices_taken`` (docs/reference/words.md).
      message: The reason, in words.
      wanted: Requested slices, by instance type.
      free: Free slices of these types.
      holders: Tenants that hold such slices, one text per tenant.
      position: Position in the queue, from 1.
      types: Instance types that the service has.
      spares: Slices that the service reserves as spares, by instance type.
      waiting_is_futile: Whether the ends of all other tenants and reservations would not help;
        `message` has what has to happen. None: not known.
    """

    refusal: str = wire("kind", "")
    message: str = ""
    wanted: Mapping[str, int] = dataclasses.field(default_factory=dict)
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)
    holders: tuple[str, ...] = ()
    position: int | None = None
    types: tuple[str, ...] = ()
    spares: Mapping[str, int] = dataclasses.field(default_factory=dict)
    waiting_is_futile: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantRunning(TenantEvent, name="tenant.running"):
    """Enough of the tenant's slices are placed for it to run.

    Attributes:
      placed: Number of placed virtual slices.
      wanted: Number of requested virtual slices.
    """

    placed: int | None = None
    wanted: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantGone(TenantEvent, name="tenant.gone"):
    """The resource manager has released the tenant.

    Attributes:
      slices: Number of slices that it held.
    """

    slices: int | None = None


# ---- slices that are taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantPreempting(TenantEvent, name="tenant.preempting"):
    """The tenant's slices will be taken for the tenant that `reason` names.

    Attributes:
      by: The name of that tenant.
      grace_s: Seconds until then.
    """

    by: str = ""
    grace_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantPreemptingWithdrawn(TenantEvent, name="tenant.preempting_withdrawn"):
    """The tenant's slices will not be taken after all.

    Attributes:
      by: The name of the tenant that was to get them.
    """

    by: str = ""


class TenantPreempted(TenantEvent, name="tenant.preempted"):
    """The tenant's slices were taken; it is queued for others without a new request."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantIdling(TenantEvent, name="tenant.idling"):
    """The tenant does not compute, and its slices will be taken back.

    Attributes:
      idle_s: Seconds since its last computation.
      release_s: Seconds until they are taken back.
    """

    idle_s: float | None = None
    release_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantIdlingWithdrawn(TenantEvent, name="tenant.idling_withdrawn"):
    """The tenant computes again, and keeps its slices.

    Attributes:
      idle_s: Seconds for which it did not compute.
    """

    idle_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantIdled(TenantEvent, name="tenant.idled"):
    """The tenant's slices were taken back; it gets others when it computes again.

    Attributes:
      idle_s: Seconds since its last computation.
    """

    idle_s: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceMoving(TenantEvent, name="slice.moving"):
    """A slice of the tenant is drained, and will be replaced by another.

    Attributes:
      virtual_index: Which of the tenant's virtual slices it is, from 0; None: unknown.
      slice_id: The slice that is drained.
      onto: The slice that replaces it.
    """

    virtual_index: int | None = None
    slice_id: str = ""
    onto: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SliceMovingWithdrawn(TenantEvent, name="slice.moving_withdrawn"):
    """A slice of the tenant will not be replaced after all.

    Attributes:
      virtual_index: Which of the tenant's virtual slices it is, from 0; None: unknown.
      slice_id: The slice that it stays on.
    """

    virtual_index: int | None = None
    slice_id: str = ""


# ---- placements


@dataclasses.dataclass(frozen=True, kw_only=True)
class VirtualSliceEvent(TenantEvent):
    """A change of one virtual slice's placement.

    Attributes:
      virtual_index: Which of the tenant's virtual slices it is, from 0; None: unknown.
      slice_id: The physical slice; empty: unknown.
      generation: The number of the placement, higher for each later one.
      instance_type: E.g. ``tpuv6e:2x2``; empty: unknown.
    """

    virtual_index: int | None = None
    slice_id: str = ""
    generation: int | None = None
    instance_type: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicePlaced(VirtualSliceEvent, name="slice.placed"):
    """A virtual slice was placed on a physical one.

    Attributes:
      starting: True: its executors are yet to start, and work for it waits until `ExecutorStarted`.
        False: they serve. None: the service has none, or recovers and does not know.
    """

    starting: bool | None = None


class SliceUnplaced(VirtualSliceEvent, name="slice.unplaced"):
    """A virtual slice lost its physical one; `reason` says why."""


# ---- executors


class ExecutorStarted(VirtualSliceEvent, name="executor.started"):
    """The executors of a placement serve on all its hosts.

    Attributes:
      duration_s: From their assignment until all serve or, if the resource manager was away
        meanwhile, until it received their reports.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorLost(VirtualSliceEvent, name="executor.lost"):
    """An executor ended, or its proxy cannot use it; its placement ends. `reason` says why.

    Attributes:
      host: The index of its host in the slice; None: unknown, or not one host in particular.
      exit_code: Its exit code; negative: the number of a signal; None: it has none, or unknown.
    """

    host: int | None = None
    exit_code: int | None = None
