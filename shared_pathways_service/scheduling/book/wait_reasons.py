"""Computes the queue message of a waiting tenant: its position, the reason, the holders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from shared_pathways_service.scheduling.book.pool_text import PoolText
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
        pool.text = PoolText(_free_text(pool), _details(pool), tuple(_holder_texts(pool)))
    return pool.text


def _free_text(pool: Pool) -> str:
    count = pool.grantable
    if count == 0:
        return f"no {pool.name} slice is free"
    return f"1 {pool.name} slice is free" if count == 1 else f"{count} {pool.name} slices are free"


def _details(pool: Pool) -> str:
    details = ""
    if spares := min(pool.free, pool.spares_kept):
        verb, noun = ("is", "a spare") if spares == 1 else ("are", "spares")
        details = f"; {spares} more {verb} reserved as {noun}"
    if pool.reserved is not None:
        details += pool.reserved.words()
    if pool.ready < pool.count:
        details += f"; {pool.ready} of {pool.count} ready"
    return details


def _holder_texts(pool: Pool) -> Iterator[str]:
    for holder, held in itertools.islice(pool.holders.items(), _HOLDERS):
        yield f"{holder.label}: {held} x {pool.name}"
    if (others := len(pool.holders) - _HOLDERS) > 0:
        yield f"and {others} more of {pool.name}"
