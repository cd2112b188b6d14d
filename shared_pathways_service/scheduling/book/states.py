"""The states of slices and tenants, and operators' marks on slices."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from shared_pathways_service.events import manager_events

__all__ = ["SLICE_EVENTS", "SliceMark", "SliceState", "TenantState", "VirtualSliceState"]


class SliceState(enum.StrEnum):
    """State of a physical slice."""

    STARTING = "starting"
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    LOST = "lost"


#: The event of a slice's transition to a state.
SLICE_EVENTS: Mapping[SliceState, type[manager_events.PhysicalSliceEvent]] = {
    SliceState.STARTING: manager_events.SliceStarting,
    SliceState.READY: manager_events.SliceReady,
    SliceState.CORDONED: manager_events.SliceCordoned,
    SliceState.DRAINING: manager_events.SliceDraining,
    SliceState.LOST: manager_events.PhysicalSliceLost,
}


class SliceMark(enum.StrEnum):
    """An operator's mark on a physical slice."""

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
    IDLE = "idle"
    GONE = "gone"
