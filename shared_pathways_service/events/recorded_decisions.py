"""Decisions of the resource manager, which its history records and `sps events` shows.

A decision that is also an event has the event's name, but other fields, such as the tenant's user
and team.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.events import manager_events, proxy, tenants
from shared_pathways_service.events.base import Event, common_fields, own_fields

__all__ = ["KINDS", "DecisionKind", "RecordedDecision"]


class DecisionKind(enum.StrEnum):
    """The kinds of decisions, named like the events that report them."""

    # Of a tenant.
    QUEUED = tenants.TenantQueued.kind
    PREEMPTED = tenants.TenantPreempted.kind
    IDLED = tenants.TenantIdled.kind
    RUNNING = tenants.TenantRunning.kind
    REFUSED = tenants.TenantRefused.kind
    TURNED_AWAY = "tenant.turned_away"
    RELEASED = "tenant.released"
    EXPIRED = "tenant.expired"
    FORGOTTEN = "tenant.forgotten"
    ADOPTED = "tenant.adopted"
    # Of a slice and its holder.
    PLACED = tenants.SlicePlaced.kind
    REPLACED = "slice.replaced"
    CLAIMED = "slice.claimed"
    UNPLACED = tenants.SliceUnplaced.kind
    FREED = "slice.freed"
    EXECUTOR_STARTED = tenants.ExecutorStarted.kind
    EXECUTOR_LOST = tenants.ExecutorLost.kind
    # Of a slice alone.
    STARTING = manager_events.SliceStarting.kind
    READY = manager_events.SliceReady.kind
    LOST = manager_events.PhysicalSliceLost.kind
    CORDONED = manager_events.SliceCordoned.kind
    DRAINING = manager_events.SliceDraining.kind
    # Of a reservation.
    RESERVED = manager_events.ReservationMade.kind
    RESERVATION_STARTED = manager_events.ReservationStarted.kind
    RESERVATION_ENDED = manager_events.ReservationEnded.kind
    # Of the resource manager.
    STARTED = "rm.started"
    RECOVERING = manager_events.ManagerRecovering.kind
    RECOVERED = manager_events.ManagerRecovered.kind


#: The kinds in a history: decisions, and events that proxies report.
KINDS = frozenset({*DecisionKind, *(cls.kind for cls in proxy.ProxyReport.__subclasses__())})


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedDecision(Event):
    """A decision of the resource manager, which `kind` names.

    Attributes:
      kind: One of `KINDS`, or one of a newer version.
      user: The tenant's user, as the tenant reported it.
      team: The tenant's team, as the tenant reported it.
      virtual_index: The tenant's virtual slice; None: none.
      generation: The placement's generation; None: no placement.
      instance_type: The slice's type, or the tenant's request, e.g. ``tpuv6e:2x2=2,tpuv5e:2x2=1``.
      related: Another tenant involved.
    """

    kind: str  # type: ignore[misc]  # elsewhere it is the class's
    source: str = "rm"
    user: str | None = None
    team: str | None = None
    virtual_index: int | None = None
    generation: int | None = None
    instance_type: str | None = None
    related: str | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RecordedDecision:
        """Makes the decision from plain data of `to_dict`."""
        return cls(
            kind=data["kind"], **common_fields(data), **own_fields(cls, data.get("data") or {})
        )
