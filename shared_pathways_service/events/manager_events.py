"""Events of the resource manager itself, of physical slices and of reservations."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.base import Event

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
    """The resource manager has started, and waits for known slices and tenants.

    Attributes:
      tenants: Number of known tenants.
    """

    tenants: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManagerRecovered(ManagerEvent, name="rm.recovered"):
    """The resource manager places tenants again after its start.

    Attributes:
      tenants: Number of known tenants.
      slices_unheard: Number of slices that did not report in time, and count as lost.
    """

    tenants: int | None = None
    slices_unheard: int | None = None


# ---- tenants, for operators only


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantDisconnected(ManagerEvent, name="tenant.disconnected"):
    """The tenant's proxy is no longer connected.

    Attributes:
      ttl_s: Seconds for which the tenant keeps its slices.
    """

    ttl_s: float | None = None


class TenantReturned(ManagerEvent, name="tenant.returned"):
    """The tenant's proxy is connected again."""


# ---- physical slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhysicalSliceEvent(ManagerEvent):
    """The state of a physical slice changed.

    Attributes:
      instance_type: E.g. ``tpuv6e:2x2``.
      ready: Number of ready slices of this type.
      count: Number of slices of this type.
      state: The slice's state, in events of an operator's action, which do not imply it.
    """

    instance_type: str = ""
    ready: int | None = None
    count: int | None = None
    state: str | None = None


class SliceStarting(PhysicalSliceEvent, name="slice.starting"):
    """Some, but not all, of the slice's workers are connected."""


class SliceReady(PhysicalSliceEvent, name="slice.ready"):
    """The slice can be assigned to a tenant, or is assigned already."""


class PhysicalSliceLost(PhysicalSliceEvent, name="slice.lost"):
    """A worker of the slice ended or does not answer; `reason` says which."""


class SliceCordoned(PhysicalSliceEvent, name="slice.cordoned"):
    """An operator cordoned the slice: it is not assigned to further tenants."""


class SliceDraining(PhysicalSliceEvent, name="slice.draining"):
    """An operator drains the slice: its tenant moves to another slice if one is available."""


class SliceUncordoned(PhysicalSliceEvent, name="slice.uncordoned"):
    """An operator ended the slice's cordon or drain."""


# ---- reservations


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReservationEvent(ManagerEvent):
    """An event of a reservation, which `reason` names.

    Attributes:
      instance_type: Type of the reserved slices.
      count: Number of reserved slices.
    """

    instance_type: str = ""
    count: int | None = None


class ReservationMade(ReservationEvent, name="reservation.made"):
    """An operator reserved slices."""


class ReservationStarted(ReservationEvent, name="reservation.started"):
    """A reservation is in force."""


class ReservationEnded(ReservationEvent, name="reservation.ended"):
    """A reservation ended or was cancelled; `reason` says which."""
