"""Computes the queue message of a waiting tenant: its position, the reason, the holders."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from shared_pathways_service.scheduling.book.pool_text import PoolText, describe
from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["holders_of", "position_of", "reason_of"]

#: Holders of one type that a queue message names at most.
_HOLDERS = 10


def position_of(tenant: Tenant) -> int:
    """Returns a waiting tenant's place, from 1: the farthest back of its places in line."""
    return 1 + max(pool.waiting.ahead_of(tenant) for pool in tenant.wants)


def holders_of(pools: Mapping[Pool, int]) -> tuple[str, ...]:
    """Returns the labels of the holders of slices of these types."""
    if len(pools) == 1:
        (pool,) = pools
        return _text(pool).holders
    return tuple(holder for pool in pools for holder in _text(pool).holders)


def reason_of(tenant: Tenant) -> str:
    """Returns why a tenant waits: the free slices, and how many it wants."""
    if len(tenant.wants) == 1:
        return _text(tenant.pools[0]).reason(len(tenant.pools))
    return "; ".join(_text(pool).reason(count) for pool, count in tenant.wants.items())


def _text(pool: Pool) -> PoolText:
    """Returns the description of a pool; made once for all waiting tenants, until it changes."""
    if pool.text is None:
        holders = pool.holders.items()
        pool.text = describe(
            pool.name,
            free=pool.grantable,
            spares=min(pool.free, pool.spares_kept),
            reserved="" if pool.reserved is None else pool.reserved.words(),
            ready=pool.ready,
            count=pool.count,
            holders=[(one.label, held) for one, held in itertools.islice(holders, _HOLDERS)],
            others=len(holders) - _HOLDERS,
        )
    return pool.text
