"""Placement order: which tenant gets the next free slices.

A pool's free slices go, in this order, to

1. lost virtual slices of running tenants (also spares),
2. holders of drained slices (also spares),
3. waiting gangs, and elastic virtual slices of running tenants that were never placed, in the order
   of `scheduling.policies.aging`. Spares are withheld from these.

The line of each instance type is strict: no tenant passes the one at its head, even if the head
does not fit and a later one would. There are three exceptions. A tenant that is promised its
victims' slices (`scheduling.policies.preemption`) has slices of its own, so the one behind it does
not pass it. A tenant that does not delay the head may start before it
(`scheduling.policies.backfill`). And an elastic slice that a coming reservation
delays is passed by tenants that do not delay it further (`Reserved.room_beside`). A gang that
wants several types is in the line of each, and starts when it is at the head of all lines that it
takes slices from. So gangs that share no type never wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared_pathways_service.scheduling.book.actions import (
    Action,
    Actions,
    PlaceMissing,
    Start,
)
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    LineChanged,
    PoolOpened,
    SlicesFreed,
)
from shared_pathways_service.scheduling.book.lines import Entry
from shared_pathways_service.scheduling.book.precedence import (
    PASSED,
    grantable_to,
    room_past_fills,
)
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.policies.policy import Policy, overrides

__all__ = ["Placement", "startable"]

#: The number of tenants with a promise that are considered when slices become free on their own.
_PROMISED = 8


class Placement:
    """Serves the lines of each pool that changed; policies use free slices before and after them.

    Its state: the pools in which a tenant may be placeable since they changed, in that order.
    """

    def __init__(self, policies: Sequence[Policy]) -> None:
        self._first = overrides(policies, Policy.serve_first)
        self._owners = overrides(policies, Policy.serve_owners)
        self._relieve = overrides(policies, Policy.relieve)
        self._rest = overrides(policies, Policy.serve_rest)
        self._unserved: dict[Pool, None] = {}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Changes of free slices and lines, and other changes that open a pool."""
        return dict.fromkeys((SlicesFreed, LineChanged, PoolOpened), self._changed)

    def _changed(self, change: SlicesFreed | LineChanged | PoolOpened) -> None:
        self._unserved[change.pool] = None

    def run(self) -> Actions:
        """Serves each pool that changed, and the pools that this changes."""
        return self._serve_all() if self._unserved else ()

    def _serve_all(self) -> Actions:
        unserved = self._unserved
        while unserved:
            pool = next(iter(unserved))
            del unserved[pool]
            if not pool.free and not pool.drains:
                continue
            while pool.free and pool.repairs.entries:
                *_, index, tenant = pool.repairs.entries[0]
                yield PlaceMissing(tenant, index, pool)
            for serve in self._first:
                yield from serve(pool)
            if pool.waiting.entries or pool.fills.entries:
                yield from self._serve_lines(pool)

    def _serve_lines(self, pool: Pool) -> Actions:
        for serve in self._owners:
            yield from serve(pool)
        while pool.grantable:
            first, fill = pool.first_open(), _next_fill(pool)
            if pool.planned.entries:
                actions = self._serve_promised(pool, first, fill)
                if actions is not None:
                    yield from actions
                    continue
            if (action := _serve_next(first, fill, pool)) is None:
                break
            yield action
        if pool.grantable:
            for serve in self._rest:
                yield from serve(pool)

    def _serve_promised(
        self, pool: Pool, first: Entry[Tenant] | None, fill: Entry[Tenant] | None
    ) -> Actions | None:
        """Gives free slices to a tenant with a promise; None: no such tenant can use any."""
        for entry in pool.planned.entries[:_PROMISED]:
            if (first is not None and first < entry) or (fill is not None and fill < entry):
                break
            if (granted := startable(entry[-1])) is not None:
                return (Start(entry[-1], granted),)
            for relieve in self._relieve:
                if (actions := relieve(entry[-1], pool)) is not None:
                    return actions
        return None


def _serve_next(
    first: Entry[Tenant] | None, fill: Entry[Tenant] | None, pool: Pool
) -> Action | None:
    """Returns the action that starts or fills up the next tenant in line; None: not possible."""
    if fill is not None and (first is None or fill < first):
        return PlaceMissing(fill[-1], fill[2], pool)
    if first is None or (granted := startable(first[-1])) is None:
        return None
    return Start(first[-1], granted)


def startable(tenant: Tenant) -> dict[Pool, int] | None:
    """Returns the slices that a waiting gang can have now; None: too few to start."""
    promised, granted, total = tenant.promised, {}, 0
    for pool, count in tenant.wants.items():
        could = grantable_to(tenant, pool)
        if promised:
            could += len(promised.get(pool, ()))
        granted[pool] = could = min(could, count)
        total += could
    return granted if total >= tenant.gang else None


def _next_fill(pool: Pool) -> Entry[Tenant] | None:
    """Returns the first elastic slice that may be placed now; None: there is none."""
    if not pool.fills.entries:
        return None
    fill = pool.fills.entries[0]
    if pool.room_for(fill[-1]):
        return fill
    first_of_each = {entry[-1]: entry for entry in reversed(pool.fills.entries)}
    behind = sorted(first_of_each.values())[1 : 1 + PASSED]
    return next((entry for entry in behind if room_past_fills(entry[-1], pool)), None)
