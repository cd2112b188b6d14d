"""Events of the resource manager itself, of physical slices and of reservations."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.base import Event
from shared_pathways_service.events.tenants import TenantEvent

__all__ = [
    "ManagerEvent",
    "ManagerRecovered",
    "ManagerRecovering",
    "PhysicalSliceEvent",
    "PhysicalSliceLost",
    "ReservationEnded",
    "ReservationEvent",
    "ReservationMade",
    "ReservationStarted",
    "SliceCordoned",
    "SliceDraining",
    "SliceReady",
    "SliceStarting",
    "SliceUncordoned",
    "TenantDisconnected",
    "TenantReturned",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerEvent(Event):
    """An event that the resource manager reports."""

    source: str = "rm"


# ---- the resource manager


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerRecovering(ManagerEvent, name="rm.recovering"):
    """The resource manager has started, and waits for the slices and tenants that it knows.

    Attributes:
      tenants: Tenants that it knows.
    """

    tenants: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerRecovered(ManagerEvent, name="rm.recovered"):
    """The resource manager places tenants again after its start.

    Attributes:
      tenants: Tenants that it knows.
      slices_unheard: Slices that did not report in time, and count as lost.
    """

    tenants: int | None = None
    slices_unheard: int | None = None


# ---- tenants, as only operators need it


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantDisconnected(TenantEvent, name="tenant.disconnected"):
    """The tenant's proxy is not connected any more.

    Attributes:
      ttl_s: Seconds for which the tenant keeps its slices.
    """

    ttl_s: float | None = None


class TenantReturned(TenantEvent, name="tenant.returned"):
    """The tenant's proxy is connected again."""


# ---- physical slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhysicalSliceEvent(ManagerEvent):
    """A physical slice came to another state.

    Attributes:
      instance_type: E.g. ``tpuv6e:2x2``.
      ready: Slices of this type that are ready.
      count: Slices of this type.
      state: The slice's state where the event is an operator's mark, which does not say it.
    """

    instance_type: str = ""
    ready: int | None = None
    count: int | None = None
    state: str | None = None


class SliceStarting(PhysicalSliceEvent, name="slice.starting"):
    """Some, but not all, of the slice's workers are connected."""


class SliceReady(PhysicalSliceEvent, name="slice.ready"):
    """The slice can be given to a tenant, or is a tenant's."""


class PhysicalSliceLost(PhysicalSliceEvent, name="slice.lost"):
    """A worker of the slice ended or does not answer; `reason` says which."""


class SliceCordoned(PhysicalSliceEvent, name="slice.cordoned"):
    """An operator cordoned the slice: it is not given to further tenants."""


class SliceDraining(PhysicalSliceEvent, name="slice.draining"):
    """An operator drains the slice: its tenant is moved to another one if there is one."""


class SliceUncordoned(PhysicalSliceEvent, name="slice.uncordoned"):
    """An operator ended the slice's cordon or drain."""


# ---- reservations


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReservationEvent(ManagerEvent):
    """An event of a reservation, which `reason` names.

    Attributes:
      instance_type: Of the reserved slices.
      count: How many slices are reserved.
    """

    instance_type: str = ""
    count: int | None = None


class ReservationMade(ReservationEvent, name="reservation.made"):
    """An operator reserved slices."""


class ReservationStarted(ReservationEvent, name="reservation.started"):
    """A reservation is in force."""


class ReservationEnded(ReservationEvent, name="reservation.ended"):
    """A reservation is over, or was cancelled; `reason` says which."""
