"""Backfill: starts tenants before the head of their line where that does not delay the head.

The *heads* are the tenants without a promise at the front of the line of any type. A tenant behind
a head may start

- on slices beyond all that the heads want of that type, such as those left by a head that waits for
  another type; or
- on any free slices, if its stated lifetime is over before any head that wants their type can
  start. The earliest such time is known only for slices held by tenants that stated their
  lifetimes; a tenant is assumed to run for its stated lifetime. Slices that other tenants hold, or
  that are missing, may become free at any moment.

Elastic virtual slices that wait for a placement count as heads, and so do lost virtual slices. An
elastic one for which a coming reservation leaves no slice can be placed, at the earliest, when that
reservation begins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from shared_pathways_service.scheduling.book.actions import Actions, Start
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    Dequeued,
    LifetimeHoldingChanged,
    Queued,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.policies.policy import Policy

__all__ = ["Backfill"]

#: The number of tenants behind the head that are considered for remaining slices.
_LOOKED_AT = 32


class Backfill(Policy):
    """Its state, by pool: which holders, and how many waiting tenants, stated their lifetimes."""

    def __init__(self, _config: RmConfig, ledger: Ledger, _deadlines: Deadlines) -> None:
        self._ledger = ledger
        pools = ledger.pools.values()
        self._brief = dict.fromkeys(pools, 0)
        self._stated: dict[Pool, dict[Tenant, int]] = {pool: {} for pool in pools}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Changes of waiting tenants and holders that stated their lifetimes."""
        return {
            Queued: lambda change: self._count_waiting(change.tenant, +1),
            Dequeued: lambda change: self._count_waiting(change.tenant, -1),
            LifetimeHoldingChanged: self._holding_changed,
        }

    def serve_rest(self, pool: Pool) -> Actions:
        """Starts tenants on free slices that the head of the line cannot use now."""
        while pool.grantable and (found := self._next(pool)):
            yield Start(*found)

    def validate(self, *, recovering: bool) -> None:
        """Checks the counts against the book."""
        del recovering
        for pool, stated in self._stated.items():
            assert stated == {
                tenant: count
                for tenant, count in pool.holders.items()
                if tenant.ends_at is not None
            }
            waiting = [one for *_, one in pool.waiting.entries if one.ends_at is not None]
            assert self._brief[pool] == len(waiting)

    def _count_waiting(self, tenant: Tenant, change: int) -> None:
        if tenant.ends_at is not None:
            for pool in tenant.wants:
                self._brief[pool] += change

    def _holding_changed(self, change: LifetimeHoldingChanged) -> None:
        pool, tenant = change.pool, change.tenant
        if held := pool.holders.get(tenant, 0):
            self._stated[pool][tenant] = held
        else:
            self._stated[pool].pop(tenant, None)
        # That changes the earliest start of a head of several types, and so which tenants may start
        # before it, also in its other pools.
        pools = self._ledger.pools
        for other in pools.values() if len(pools) > 1 else ():
            first = other.first_open()
            if first is not None and pool in first[-1].wants:
                for wanted in first[-1].wants:
                    if self._brief[wanted]:
                        self._ledger.changes.open_at_once(wanted)

    def _next(self, pool: Pool) -> tuple[Tenant, dict[Pool, int]] | None:
        """Returns the tenant that may start, and on how many slices of each type; None: none may.

        Only the first tenants behind the head are considered.
        """
        line = pool.waiting.entries
        if len(line) < 2 or pool.repairs.entries or pool.drains:
            return None
        brief = self._brief[pool]
        if not brief and len(self._ledger.pools) == 1:
            return None  # the head waits for slices of this type, and leaves none
        heads = self._heads()
        if not brief and self._left(pool, heads) <= 0:
            return None
        for *_, tenant in itertools.islice(line, 1, 1 + _LOOKED_AT):
            if tenant not in heads and not tenant.has_promise:
                granted = self._granted(tenant, heads)
                if granted is not None:
                    return tenant, granted
        return None

    def _heads(self) -> list[Tenant]:
        first = (pool.first_open() for pool in self._ledger.pools.values())
        return list(dict.fromkeys(entry[-1] for entry in first if entry is not None))

    def _granted(self, tenant: Tenant, heads: list[Tenant]) -> dict[Pool, int] | None:
        wants = tenant.wants
        granted = {
            pool: min(count, max(0, self._left(pool, heads)), pool.room_for(tenant))
            for pool, count in wants.items()
        }
        if sum(granted.values()) >= tenant.gang:
            return granted
        if tenant.ends_at is None or not all(self._over_in_time(tenant, p, heads) for p in wants):
            return None
        granted = {pool: min(count, pool.room_for(tenant)) for pool, count in wants.items()}
        return granted if sum(granted.values()) >= tenant.gang else None

    def _left(self, pool: Pool, heads: list[Tenant]) -> int:
        """Returns how many free slices of a pool the heads and other earlier tenants cannot use."""
        if pool.repairs.entries or pool.drains:
            return 0
        wanted = sum(head.wants.get(pool, 0) for head in heads)
        return pool.grantable - wanted - len(pool.fills)

    def _over_in_time(self, tenant: Tenant, pool: Pool, heads: list[Tenant]) -> bool:
        if pool.repairs.entries or pool.drains:
            return False
        ends_at = tenant.ends_at
        assert ends_at is not None
        if not all(ends_at <= self._earliest(head) for head in heads if pool in head.wants):
            return False
        running = dict.fromkeys(entry[-1] for entry in pool.fills.entries)
        return all(ends_at <= _short_until(pool, one) for one in running)

    def _earliest(self, head: Tenant) -> float:
        """Returns the earliest time at which a head can start, by the stated lifetimes."""
        if head.request.elastic_slices:
            return -math.inf  # it is open which of its slices it starts with
        return max(
            max(self._earliest_in(pool, count, head), _barred_until(pool, count, head))
            for pool, count in head.wants.items()
        )

    def _earliest_in(self, pool: Pool, wanted: int, head: Tenant) -> float:
        """Returns the earliest time at which a head can have the slices of a pool that it wants."""
        # Holders of lower priority may be preempted for it at any time.
        stated = [
            (holder.ends_at, holder.order, count)
            for holder, count in self._stated[pool].items()
            if holder.ends_at is not None and holder.request.priority >= head.request.priority
        ]
        missing = wanted - (pool.count - pool.spares - sum(count for *_, count in stated))
        for ends_at, _, count in sorted(stated):
            if missing <= 0:
                break
            missing -= count
            if missing <= 0:
                return ends_at
        return -math.inf if missing <= 0 else math.inf


def _barred_until(pool: Pool, wanted: int, head: Tenant) -> float:
    """Returns the earliest time at which others' reservations let a head have its slices."""
    return -math.inf if pool.reserved is None else pool.reserved.barred_until(head, wanted)


def _short_until(pool: Pool, running: Tenant) -> float:
    """Returns the earliest time at which others' reservations let a tenant have elastic slices."""
    return -math.inf if pool.reserved is None else pool.reserved.short_until(running)
