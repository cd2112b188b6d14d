"""Computes why a request cannot have its slices: too few slices, or withheld spares."""

from __future__ import annotations

from collections.abc import Mapping

from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["could_fit", "spares_in_the_way", "spares_out_of_reach", "too_many"]


def could_fit(wants: Mapping[Pool, int], needed: int) -> bool:
    """Returns whether a gang could start if all slices of the service were free."""
    return sum([min(count, pool.usable) for pool, count in wants.items()]) >= needed


def too_many(wants: Mapping[Pool, int]) -> str:
    """Describes in words how many slices a gang wants, and how many exist."""
    return "; ".join(
        f"the service has only {pool.usable} x {pool.name} ({count} wanted"
        + (f"; spares: {pool.spares})" if pool.spares else ")")
        for pool, count in wants.items()
    )


def spares_in_the_way(tenant: Tenant) -> dict[str, int]:
    """Returns the spares with which a waiting tenant would start now, by instance type.

    Empty if the tenant would not start with them either: others are before it in line, too few
    slices are free, or the type has reservations, which come before it as well.
    """
    if any(pool.waiting.ahead_of(tenant) for pool in tenant.wants):
        return {}
    room = {pool: pool.room_for(tenant) for pool in tenant.wants}
    spares = {
        pool: min(pool.free, pool.spares_kept) if pool.reserved is None else 0 for pool in room
    }
    return _needed(tenant.wants, tenant.gang, room, spares)


def spares_out_of_reach(wants: Mapping[Pool, int], needed: int) -> dict[str, int]:
    """Returns the spares with which a service would be large enough for a gang, by type."""
    usable = {pool: pool.usable for pool in wants}
    return _needed(wants, needed, usable, {pool: pool.count - usable[pool] for pool in wants})


def _needed(
    wants: Mapping[Pool, int], needed: int, room: Mapping[Pool, int], spares: Mapping[Pool, int]
) -> dict[str, int]:
    lent = {
        pool: min(spares[pool], wanted - room[pool])
        for pool, wanted in wants.items()
        if spares[pool] and wanted > room[pool]
    }
    had = sum(min(wanted, room[pool]) for pool, wanted in wants.items())
    if not had < needed <= had + sum(lent.values()):
        return {}
    return {pool.name: count for pool, count in lent.items()}
