"""What goes into the resource manager's core, and what comes out: data only.

The server turns calls into events, hands each to the core together with the time, and carries out
the instructions in the order given. The core never looks at a clock and never does I/O.
"""

from __future__ import annotations

from shared_pathways_service.scheduling.book.messages.core_events import (
    Claim,
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
    RefusalKind,
    RefuseTenant,
    RefuseWorker,
    TellIdle,
    TellPlaced,
    TellPreempting,
    TellQueued,
    TellRunning,
    TellUnplaced,
    WelcomeTenant,
    WelcomeWorker,
)

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
