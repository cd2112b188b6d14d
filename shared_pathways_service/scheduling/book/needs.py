"""Computes whether waiting helps a tenant, and what has to happen if it does not.

Waiting helps if the ends of other tenants and of reservations would give a tenant its slices, with
the slices as they are: no other one becomes ready, and none is uncordoned. It also helps if the
tenant then preempts others, whose slices it gets even where they would be kept as spares. Whom it
can preempt once reservations have ended is not foreseen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.states import SliceState

__all__ = ["Missing", "Needs", "needs_of"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """Slices of one type that have to come into service before a tenant can start.

    Each slice that becomes ready is one more, and so is each that is uncordoned.

    Attributes:
      count: How many have to.
      cordoned: How many would by uncordoning alone, beyond those for which a spare stands in.
      unready: How many would by becoming ready alone.
    """

    count: int
    cordoned: int
    unready: int

    def words(self, name: str) -> str:
        """Returns what has to happen to slices of the type of this name."""
        slices = f"slice of {name} has" if self.count == 1 else f"slices of {name} have"
        uncordoned = "be uncordoned (`sps uncordon`)"
        if self.count <= self.cordoned and not self.unready:
            how = uncordoned
        elif self.count <= self.unready and not self.cordoned:
            how = "become ready"
        elif self.count <= self.cordoned + self.unready:
            how = f"become ready or {uncordoned}"
        else:
            how = f"{uncordoned} and become ready"
        return f"{self.count} more {slices} to {how}"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What has to happen, besides the ends of others, for a tenant to start.

    Attributes:
      missing: Slices that have to come into service, by instance type.
        Empty if the service is too small, whatever happens.
      outlived: Whether reservations of others last longer than the tenant's stated lifetime.
    """

    missing: Mapping[str, Missing] = dataclasses.field(default_factory=dict)
    outlived: bool = False

    @property
    def words(self) -> str:
        """The needs in words."""
        said = [missing.words(name) for name, missing in self.missing.items()]
        if self.outlived:
            said.append("its stated lifetime (max_lifetime) ends before the reservations do")
        return "; ".join(said)


def needs_of(tenant: Tenant) -> Needs | None:
    """Returns what a waiting tenant needs besides the ends of others; None: waiting helps."""
    wants, gang = tenant.wants, tenant.gang
    if len(wants) == 1:  # called for each tenant in line, and nearly always true
        (pool,) = wants
        if pool.reserved is None and pool.in_service >= gang:
            return None
    if tenant.has_promise:
        return None  # it gets its victims' slices, whatever is reserved or kept as spares
    if _sum_of(wants, {pool: pool.usable for pool in wants}) < gang:
        return Needs()
    if any(pool.reserved is not None for pool in wants):
        in_service = {pool: pool.in_service for pool in wants}
    else:
        in_service = {pool: _within_reach(tenant, pool) for pool in wants}
    needed = gang - _sum_of(wants, in_service)
    missing: dict[str, Missing] = {}
    for pool, wanted in wants.items():
        gain = min(needed, min(wanted, pool.usable) - in_service[pool])
        if gain > 0:
            needed -= gain
            in_service[pool] += gain
            missing[pool.name] = Missing(
                # Before any is granted, as many are ready as are kept as spares.
                count=in_service[pool] - (pool.ready - pool.spares_beside_marked),
                cordoned=min(pool.barred, max(0, pool.marked - pool.spares)),
                unready=max(0, pool.count - pool.ready - pool.marked),
            )
    outlived = _is_outlived(tenant, in_service)
    return Needs(missing=missing, outlived=outlived) if missing or outlived else None


def _within_reach(tenant: Tenant, pool: Pool) -> int:
    """Returns how many slices that are in service a tenant can come to have."""
    lower = sum(
        _ready_ones(pool, holder) for holder in pool.holders if _may_preempt(tenant, holder)
    )
    lower += sum(
        len(waiting.promised.get(pool, ()))
        for *_, waiting in pool.planned.entries
        if waiting.request.priority < tenant.request.priority
    )
    return lower + max(0, pool.ready - lower - pool.spares_beside_marked)


def _ready_ones(pool: Pool, holder: Tenant) -> int:
    held = holder.placed.values()
    return sum(one.pool is pool and one.state is SliceState.READY for one in held)


def _may_preempt(tenant: Tenant, holder: Tenant) -> bool:
    # (A reservation of another type may shelter it.)
    return (
        holder.running
        and holder.request.priority < tenant.request.priority
        and all(pool.reserved is None for pool in holder.wants)
    )


def _is_outlived(tenant: Tenant, in_service: Mapping[Pool, int]) -> bool:
    """Whether others' reservations leave a tenant too few of these slices during its lifetime."""
    reserved = [pool.reserved for pool in tenant.wants if pool.reserved is not None]
    if tenant.ends_at is None or not reserved:
        return False  # each reservation ends
    # (Reservations leave more only when one of them ends.)
    for when in {moment for of in reserved for moment in of.moments(tenant)}:
        room = {
            pool: count if pool.reserved is None else pool.reserved.room_of(count, tenant, when)
            for pool, count in in_service.items()
        }
        if _sum_of(tenant.wants, room) >= tenant.gang:
            return False
    return True


def _sum_of(wants: Mapping[Pool, int], room: Mapping[Pool, int]) -> int:
    return sum(min(count, room[pool]) for pool, count in wants.items())
