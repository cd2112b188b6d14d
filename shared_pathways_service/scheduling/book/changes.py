"""Typed records of changes of the book, which it publishes to the policies that consume them.

A record says what changed, not what follows from it. A policy notes what it needs in its own state
and acts when the core asks it to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = [
    "Change",
    "Consumer",
    "Dequeued",
    "HoldingChanged",
    "LifetimeHoldingChanged",
    "LineChanged",
    "NoticeEnded",
    "NoticeGiven",
    "PlaceWanted",
    "PoolChanged",
    "PoolOpened",
    "PromiseBegan",
    "PromiseEnded",
    "PromisedSliceLost",
    "Queued",
    "ShelterChanged",
    "SlicesFreed",
    "TenantEntered",
    "TenantLeft",
    "Vacated",
]

# (Not frozen: an event makes several, and that would double what making one costs.)


@dataclasses.dataclass(eq=False, slots=True)
class SlicesFreed:
    """More slices of a pool can be granted, or fewer are withheld as spares."""

    pool: Pool


@dataclasses.dataclass(eq=False, slots=True)
class LineChanged:
    """A line of a pool has other entries: waiting tenants, lost or missing virtual slices."""

    pool: Pool


@dataclasses.dataclass(eq=False, slots=True)
class PoolOpened:
    """A pool must be served again, although neither its free slices nor its lines changed."""

    pool: Pool


@dataclasses.dataclass(eq=False, slots=True)
class PoolChanged:
    """The description of a pool for waiting tenants changed: its slices and their holders."""

    pool: Pool


@dataclasses.dataclass(eq=False, slots=True)
class HoldingChanged:
    """A tenant holds other slices of a pool, in another state, or under another notice."""

    pool: Pool
    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class LifetimeHoldingChanged:
    """A tenant that stated its lifetime holds other slices of a pool."""

    pool: Pool
    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class ShelterChanged:
    """Reservations of a pool shelter other holders from preemption.

    Attributes:
      tenant: A tenant whose slices changed, and that may hold none any more; None: the reservations
        themselves changed.
    """

    pool: Pool
    tenant: Tenant | None


@dataclasses.dataclass(eq=False, slots=True)
class NoticeGiven:
    """A running tenant was given notice, or another one than before."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class NoticeEnded:
    """A tenant is under notice no longer: its slices were taken, or will not be."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class TenantEntered:
    """A tenant is new in the book; its slices, or its place in line, are entered after that."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class TenantLeft:
    """A tenant is gone."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class Vacated:
    """All slices were taken from a tenant, which stays."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class Queued:
    """A tenant is in the line of each type that it wants."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class Dequeued:
    """A tenant is in no line of waiting tenants any more."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class PlaceWanted:
    """A tenant must be sent its place in the queue, if it waits after this event."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class PromiseBegan:
    """A waiting tenant has stepped aside, as slices are reserved for it."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class PromiseEnded:
    """A waiting tenant's promise ended: it starts, leaves, or cannot have the slices."""

    tenant: Tenant


@dataclasses.dataclass(eq=False, slots=True)
class PromisedSliceLost:
    """A slice is no longer reserved for a tenant."""

    tenant: Tenant


Change: TypeAlias = (
    SlicesFreed
    | LineChanged
    | PoolOpened
    | PoolChanged
    | HoldingChanged
    | LifetimeHoldingChanged
    | ShelterChanged
    | NoticeGiven
    | NoticeEnded
    | TenantEntered
    | TenantLeft
    | Vacated
    | Queued
    | Dequeued
    | PlaceWanted
    | PromiseBegan
    | PromiseEnded
    | PromisedSliceLost
)

#: Handles one kind of change; it changes only its own state.
Consumer: TypeAlias = Callable[[Any], None]
