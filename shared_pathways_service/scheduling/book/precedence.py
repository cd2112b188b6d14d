"""Computes whose turn it is: what a waiting tenant may have now, and who is before it."""

from __future__ import annotations

import itertools

from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["PASSED", "blocker_of", "grantable_to", "room_past_fills"]

#: The most tenants with elastic slices delayed by a reservation that one tenant may pass.
PASSED = 32


def grantable_to(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices of a pool a waiting tenant could have after those before it.

    Slices promised to it do not count.
    """
    # A line that has not been served yet may still have free slices for the tenants before it.
    if pool.repairs.entries or pool.drains:
        return 0
    first, fills = pool.first_open(), pool.fills.entries
    if first is not None and first[-1] is not tenant and first[:2] < tenant.rank:
        return 0
    if fills and fills[0][:2] < tenant.rank:
        return room_past_fills(tenant, pool)
    return pool.room_for(tenant)


def blocker_of(tenant: Tenant, pool: Pool) -> Tenant | None:
    """Returns the tenant for which a pool's free slices are kept from a waiting one.

    It is the head of the line, or a running tenant whose elastic slices come first; None: it is
    this tenant's turn.
    """
    first, fills = pool.first_open(), pool.fills.entries
    if first is not None and first[-1] is not tenant and first[:2] < tenant.rank:
        return first[-1]
    if fills and fills[0][:2] < tenant.rank and not room_past_fills(tenant, pool):
        return fills[0][-1]
    return None


def room_past_fills(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices a tenant may have by passing elastic slices before it."""
    reserved = pool.reserved
    if reserved is None:
        return 0
    fills = itertools.takewhile(lambda entry: entry[:2] < tenant.rank, pool.fills.entries)
    before = dict.fromkeys(entry[-1] for entry in fills)
    if len(before) > PASSED:
        return 0
    return min(reserved.room_beside(tenant, running) for running in before)
