"""Indexes the tenants that may be preempted, and chooses victims among them."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Mapping

from shared_pathways_service.scheduling.book.precedence import grantable_to
from shared_pathways_service.scheduling.book.records import BARRED, Pool, Tenant

__all__ = ["Victims", "attainable", "choose_victims", "yield_of"]

#: The most changes that are collected before they are applied.
_MANY = 4096


class Victims:
    """Running tenants that hold slices of a pool: lowest priority first, then the youngest.

    Most events do not need the order: changes are collected, and applied when it is needed.
    """

    __slots__ = ("_changed", "_entries", "_keys", "_pool", "_sums", "_yields", "lowest")

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._changed: dict[Tenant, None] = {}
        self._entries: list[tuple[int, int, Tenant]] = []
        self._yields: dict[Tenant, int] = {}
        self._keys: dict[Tenant, tuple[int, int]] = {}
        self._sums: dict[int, int] = {}
        #: No holder has a lower priority than this.
        self.lowest = float("inf")

    def changed(self, tenant: Tenant) -> None:
        """Notes that a tenant would yield more or fewer slices than before."""
        self._changed[tenant] = None
        priority = tenant.request.priority
        if priority < self.lowest:  # noqa: PLR1730 - called at every event; min() is slower
            self.lowest = priority
        if len(self._changed) > _MANY:
            self.refresh()

    def refresh(self) -> None:
        """Applies all collected changes."""
        for tenant in self._changed:
            self._set(tenant, self.freed_by(tenant))
        self._changed.clear()
        self.lowest = self._entries[0][0] if self._entries else float("inf")

    def below(self, priority: int) -> int:
        """Returns how many slices tenants of lower priority would yield together."""
        return sum([count for of, count in self._sums.items() if of < priority])

    def in_order(self, priority: int) -> Iterator[tuple[int, int, Tenant]]:
        """Yields tenants of lower priority after their sort keys, the first victim first."""
        for entry in self._entries:
            if entry[0] >= priority:
                return
            yield entry

    def validate(self, tenants: Iterable[Tenant]) -> None:
        """Raises AssertionError where the index contradicts what tenants hold."""
        self.refresh()
        for tenant in tenants:
            assert self._yields.get(tenant, 0) == self.freed_by(tenant), tenant.name
        assert sum(self._sums.values()) == sum(self._yields.values())

    def freed_by(self, tenant: Tenant) -> int:
        """Returns how many slices would become free if a tenant were preempted."""
        held = self._pool.holders.get(tenant, 0)
        if not held or tenant.notice is not None or not tenant.running:
            return 0
        # (A tenant is never preempted in part: a reservation shelters all of its slices.)
        for pool in tenant.wants:
            if pool.reserved is not None and pool.reserved.shelters(tenant):
                return 0
        return _useful(self._pool, tenant, held)

    def _set(self, tenant: Tenant, count: int) -> None:
        before = self._yields.get(tenant, 0)
        priority = tenant.request.priority
        key = (priority, -tenant.order)
        known = self._keys.get(tenant)
        if count == before and known in {None, key}:
            return
        total = self._sums.get(priority, 0) + count - before
        if total:
            self._sums[priority] = total
        else:
            self._sums.pop(priority, None)
        if known is not None and (not count or known != key):
            del self._entries[bisect.bisect_left(self._entries, known)]
            del self._keys[tenant]
            known = None
        if count and known is None:
            bisect.insort(self._entries, (*key, tenant))
            self._keys[tenant] = key
        if count:
            self._yields[tenant] = count
        else:
            del self._yields[tenant]


def choose_victims(
    tenant: Tenant,
    chosen_before: Iterable[Tenant],
    noticed: Iterable[Tenant],
    index: Mapping[Pool, Victims],
) -> list[Tenant] | None:
    """Returns the further victims that a tenant needs; None: it cannot start even with them.

    `noticed` are the tenants that are under notice for no plan.
    """
    wants = attainable(tenant)
    has = {
        pool: min(count, len(tenant.promised.get(pool, ())) + grantable_to(tenant, pool))
        for pool, count in wants.items()
    }
    for victim in chosen_before:
        _add(has, wants, victim)
    missing = tenant.gang - sum(has.values())
    if missing <= 0:
        return []
    lower = [one for one in noticed if one.request.priority < tenant.request.priority]
    if not _may_suffice(tenant, has, wants, lower, index):
        return None
    chosen = []
    for victim in _candidates(tenant, lower, index):
        gained = _add(has, wants, victim)
        if gained:
            chosen.append(victim)
            missing -= gained
            if missing <= 0:
                return chosen
    return None


def yield_of(pool: Pool, victim: Tenant) -> int:
    """Returns how many of a victim's slices of a pool others may use after it."""
    held = pool.holders.get(victim, 0)
    return _useful(pool, victim, held) if held else 0


def _useful(pool: Pool, tenant: Tenant, held: int) -> int:
    if not pool.barred:
        return held
    mine = tenant.placed.values()
    return held - sum(s.pool is pool and s.state in BARRED for s in mine)


def attainable(tenant: Tenant) -> dict[Pool, int]:
    """Returns the slices that a tenant wants, up to the number that reservations leave to it."""
    wants = tenant.wants
    for pool in wants:
        if pool.reserved is not None:
            return {pool: min(count, pool.most_for(tenant)) for pool, count in wants.items()}
    return wants


def _may_suffice(
    tenant: Tenant,
    has: dict[Pool, int],
    wants: Mapping[Pool, int],
    noticed: list[Tenant],
    index: Mapping[Pool, Victims],
) -> bool:
    """Whether all tenants of lower priority together may suffice; a check before the search."""
    could = 0
    for pool, count in has.items():
        victims = index[pool]
        victims.refresh()
        below = victims.below(tenant.request.priority)
        below += sum([yield_of(pool, one) for one in noticed])
        could += min(wants[pool], count + below)
    return could >= tenant.gang


def _candidates(
    tenant: Tenant, noticed: list[Tenant], index: Mapping[Pool, Victims]
) -> Iterator[Tenant]:
    """Yields each tenant of lower priority once, tenants under notice first."""
    yield from sorted(noticed, key=lambda one: (one.request.priority, -one.order))
    lines = (index[pool].in_order(tenant.request.priority) for pool in tenant.wants)
    last = None
    for *_, victim in heapq.merge(*lines, key=lambda entry: entry[:2]):
        if victim is not last:
            last = victim
            yield victim


def _add(has: dict[Pool, int], wants: Mapping[Pool, int], victim: Tenant) -> int:
    """Adds the slices gained from a victim to those that a tenant has; returns their number."""
    gained = 0
    for pool, count in has.items():
        more = min(yield_of(pool, victim), wants[pool] - count)
        if more > 0:
            has[pool] += more
            gained += more
    return gained
