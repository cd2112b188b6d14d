"""Computes the queue message of a waiting tenant: its position, the reason, the holders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from shared_pathways_service.scheduling.book.needs import needs_of
from shared_pathways_service.scheduling.book.pool_text import PoolText
from shared_pathways_service.scheduling.book.precedence import blocker_of, grantable_to
from shared_pathways_service.scheduling.book.records import Pool, Tenant

__all__ = ["awaited_of", "holders_of", "position_of", "reason_of"]

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
    """Returns why a tenant waits.

    That is how many slices are free for it, and how many it wants; if enough are free, who is
    before it, and what that one waits for; and what has to happen if waiting does not help.
    """
    if len(tenant.wants) == 1 and not tenant.promised and not tenant.has_promise:
        pool = tenant.pools[0]
        if pool.reserved is None:  # nearly always so, and called for each tenant in line
            return _reason_in(pool, tenant)
    return _reason_of(tenant)


def _reason_in(pool: Pool, tenant: Tenant) -> str:
    """Returns the reason of a tenant that wants one type, and has slices of its own by no right."""
    text, room, wanted = _text(pool), pool.grantable, len(tenant.pools)
    if room < tenant.gang:
        key = (room, wanted, tenant.gang, tenant.request.priority)
        known = text.short.get(key)
        if known is None:
            known = text.short[key] = _reason_of(tenant)
        return known
    before = blocker_of(tenant, pool)
    said = text.reason(room, wanted)
    return said if before is None else f"{said}, behind {_described(before, pool, text)}"


def _described(before: Tenant, pool: Pool, text: PoolText) -> str:
    """Returns the words about the first in a line, made once for all tenants behind it."""
    if before.running or before.promised:
        return _waiting_for(before, pool)
    state = (before, [grantable_to(before, one) for one in before.wants])
    known, said = text.before
    if known != state:
        said = _waiting_for(before, pool)
        text.before = state, said
    return said


def _reason_of(tenant: Tenant) -> str:
    said = "; ".join(_clauses(tenant))
    needs = needs_of(tenant)
    return f"{said}; {needs.words}" if needs and needs.words else said


def _clauses(tenant: Tenant) -> Iterator[str]:
    """Yields the state of each type that a tenant wants."""
    promised = {pool: len(kept) for pool, kept in tenant.promised.items() if kept}
    rooms = {pool: pool.room_for(tenant) for pool in tenant.wants}
    could = (min(rooms[p] + promised.get(p, 0), count) for p, count in tenant.wants.items())
    is_enough = sum(could) >= tenant.gang
    for pool, wanted in tenant.wants.items():
        said = _text(pool).reason(rooms[pool], wanted)
        if kept := promised.get(pool):
            said += f", {kept} more {'is' if kept == 1 else 'are'} kept for it"
        before = blocker_of(tenant, pool) if is_enough and rooms[pool] else None
        yield said if before is None else f"{said}, behind {_waiting_for(before, pool)}"


def _waiting_for(before: Tenant, line: Pool) -> str:
    """Returns the label of a tenant that is before others, and what it waits for."""
    short = awaited_of(before, line)
    if not short:
        return before.label
    wants = " and ".join(f"{count} x {pool.name}" for pool, count in short.items())
    return f"{before.label}, which waits for {wants}"


def awaited_of(before: Tenant, line: Pool) -> dict[Pool, int]:
    """Returns what the tenant that is first in a line waits for: types, and how many of each."""
    if before.running:  # for elastic slices
        return {line: sum(entry[-1] is before for entry in line.fills.entries)}
    promised = before.promised
    return {
        pool: count
        for pool, count in before.wants.items()
        if grantable_to(before, pool) + len(promised.get(pool, ())) < count
    }


def _text(pool: Pool) -> PoolText:
    """Returns the description of a pool; made once for all waiting tenants, until it changes."""
    if pool.text is None:
        pool.text = PoolText(pool.name, "".join(_details(pool)), tuple(_holder_texts(pool)))
    return pool.text


def _details(pool: Pool) -> Iterator[str]:
    if spares := min(pool.free, pool.spares_kept):
        yield f"; {spares} more {'is' if spares == 1 else 'are'} reserved as "
        yield "a spare" if spares == 1 else "spares"
    if pool.reserved is not None:
        yield pool.reserved.words()
    unready = pool.count - pool.ready - pool.barred
    cordoned = pool.barred - pool.draining
    for count, what in (
        (cordoned, "cordoned"),
        (pool.draining, "draining"),
        (unready, "not ready"),
    ):
        if count > 0:
            yield f"; {count} of {pool.count} {'is' if count == 1 else 'are'} {what}"


def _holder_texts(pool: Pool) -> Iterator[str]:
    for holder, held in itertools.islice(pool.holders.items(), _HOLDERS):
        yield f"{holder.label}: {held} x {pool.name}"
    if (others := len(pool.holders) - _HOLDERS) > 0:
        yield f"and {others} more of {pool.name}"
