"""Functions that return factories of tenant events, which the core announces.

An event carries a clock's time, and the core reads no clock: the server calls the factory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from shared_pathways_service.events import Event
from shared_pathways_service.events.manager_events import TenantDisconnected, TenantReturned
from shared_pathways_service.events.tenants import (
    ExecutorLost,
    ExecutorStarted,
    SliceMoving,
    SliceMovingWithdrawn,
    SlicePlaced,
    SliceUnplaced,
    TenantGone,
    TenantPreempted,
    TenantPreempting,
    TenantPreemptingWithdrawn,
    TenantQueued,
    TenantRefused,
    TenantRunning,
)
from shared_pathways_service.scheduling.book.messages import RefuseTenant
from shared_pathways_service.scheduling.book.records import Notice, Slice, Tenant

__all__ = [
    "disconnected",
    "executor_lost",
    "executor_started",
    "gone",
    "moving",
    "placed",
    "preempted",
    "preempting",
    "preempting_withdrawn",
    "queued",
    "refused",
    "returned",
    "running",
    "unplaced",
]

Make = Callable[[], Event]


# ---- slices


def placed(tenant: Tenant, index: int, onto: Slice, *, starting: bool) -> Make:
    """A virtual slice was placed; `starting`: its executors are yet to start."""
    return partial(
        SlicePlaced,
        starting=starting or None,
        tenant=tenant.name,
        slice=onto.id,
        virtual_index=index,
        slice_id=onto.id,
        generation=onto.generation,
        instance_type=onto.pool.name,
    )


def unplaced(tenant: Tenant, index: int, slice_id: str, generation: int, reason: str) -> Make:
    """A virtual slice lost its slice."""
    return partial(
        SliceUnplaced,
        tenant=tenant.name,
        slice=slice_id,
        reason=reason,
        virtual_index=index,
        slice_id=slice_id,
        generation=generation,
        instance_type=tenant.pools[index].name,
    )


def executor_started(held: Slice, seconds: float) -> Make:
    """The executors of a placement serve."""
    return partial(ExecutorStarted, duration_s=seconds, **_held(held))


def executor_lost(
    held: Slice, reason: str, *, host: int | None, exit_code: int | None = None
) -> Make:
    """An executor of a placement ended, or cannot be used."""
    return partial(ExecutorLost, reason=reason, host=host, exit_code=exit_code, **_held(held))


def _held(held: Slice) -> dict[str, Any]:
    assert held.tenant is not None
    return {
        "tenant": held.tenant.name,
        "slice": held.id,
        "virtual_index": held.index,
        "slice_id": held.id,
        "generation": held.generation,
        "instance_type": held.pool.name,
    }


def moving(drained: Slice) -> Make:
    """The tenant of a drained slice will be moved or, without `onto`, will not."""
    tenant, onto = drained.tenant, drained.onto
    assert tenant is not None
    change = SliceMovingWithdrawn if onto is None else partial(SliceMoving, onto=onto.id)
    return partial(
        change,
        tenant=tenant.name,
        slice=drained.id,
        virtual_index=drained.index,
        slice_id=drained.id,
    )


# ---- tenants


def queued(tenant: Tenant, position: int, reason: str, holders: tuple[str, ...]) -> Make:
    """A tenant waits."""
    return partial(
        TenantQueued, tenant=tenant.name, reason=reason, position=position, holders=holders
    )


def refused(refusal: RefuseTenant) -> Make:
    """A tenant does not get its slices."""
    return partial(
        TenantRefused,
        tenant=refusal.tenant,
        reason=refusal.message,
        refusal=str(refusal.kind),
        message=refusal.message,
        wanted=refusal.wanted,
        free=refusal.free,
        holders=refusal.holders,
        position=refusal.position,
        types=refusal.types,
        spares=refusal.spares,
        waiting_is_futile=refusal.waiting_is_futile,
    )


def running(tenant: Tenant) -> Make:
    """A tenant's gang is placed."""
    placed, wanted = len(tenant.placed), len(tenant.pools)
    return partial(TenantRunning, tenant=tenant.name, placed=placed, wanted=wanted)


def disconnected(tenant: Tenant, ttl_s: float) -> Make:
    """A tenant's proxy is not connected any more."""
    return partial(TenantDisconnected, tenant=tenant.name, ttl_s=ttl_s)


def returned(tenant: Tenant) -> Make:
    """A tenant's proxy is connected again."""
    return partial(TenantReturned, tenant=tenant.name)


def gone(tenant: Tenant, reason: str) -> Make:
    """A tenant is released."""
    return partial(TenantGone, tenant=tenant.name, reason=reason, slices=len(tenant.placed))


# ---- preemption


def preempting(tenant: Tenant, notice: Notice, now: float) -> Make:
    """A tenant's slices will be taken."""
    grace_s = max(0.0, notice.ends_at - now)
    return partial(
        TenantPreempting, tenant=tenant.name, reason=notice.said, by=notice.by, grace_s=grace_s
    )


def preempting_withdrawn(tenant: Tenant, notice: Notice) -> Make:
    """A tenant's slices will not be taken after all."""
    return partial(TenantPreemptingWithdrawn, tenant=tenant.name, reason=notice.said, by=notice.by)


def preempted(tenant: Tenant, reason: str) -> Make:
    """A tenant's slices were taken."""
    return partial(TenantPreempted, tenant=tenant.name, reason=reason)
