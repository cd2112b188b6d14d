"""The events and instructions of the resource manager's core: data only.

`core_events` go into the core, `instructions` come out of it. The server turns calls into events,
passes each to the core with the time, and carries out the instructions in their order. The core
reads no clock and does no I/O.
"""

from __future__ import annotations

from shared_pathways_service.scheduling.book.messages.core_events import (
    Claim,
    ProxyReported,
    ReservationCancelled,
    ReservationMade,
    ResourceManagerEvent,
    SliceCordoned,
    SliceDrained,
    SliceUncordoned,
    TenantActivity,
    TenantAsked,
    TenantReleased,
    TenantStreamEnded,
    Tick,
    WorkerBeat,
    WorkerEnded,
    WorkerJoined,
)
from shared_pathways_service.scheduling.book.messages.instructions import (
    Announce,
    EndTenantStream,
    Instruction,
    NotifyIdle,
    NotifyPlaced,
    NotifyPreempting,
    NotifyQueued,
    NotifyRunning,
    NotifyUnplaced,
    RefusalKind,
    RefuseTenant,
    RefuseWorker,
    WelcomeTenant,
    WelcomeWorker,
)

__all__ = [
    "Announce",
    "Claim",
    "EndTenantStream",
    "Instruction",
    "ProxyReported",
    "RefusalKind",
    "RefuseTenant",
    "RefuseWorker",
    "ReservationCancelled",
    "ReservationMade",
    "ResourceManagerEvent",
    "SliceCordoned",
    "SliceDrained",
    "SliceUncordoned",
    "NotifyIdle",
    "NotifyPlaced",
    "NotifyPreempting",
    "NotifyQueued",
    "NotifyRunning",
    "NotifyUnplaced",
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
