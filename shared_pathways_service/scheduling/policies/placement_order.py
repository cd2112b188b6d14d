"""Who is placed next.

A pool's free slices go, in this order, to

1. lost virtual slices of running tenants (spares may be used for them),
2. holders of slices that are drained (spares too),
3. waiting gangs, and elastic virtual slices of running tenants that were never placed, in the order
   of `scheduling.policies.aging`. Spares are kept back from these.

The line of each instance type is strict: nobody passes whoever is at its head, also where the head
does not fit and a later one would. There are three exceptions. A tenant that was promised slices
that others will be preempted from (`scheduling.policies.preemption`) has its own, so it is not
passed by the one behind it. A tenant that does not keep the head from anything may start before it
(`scheduling.policies.backfill`). And an elastic slice that a reservation to come keeps waiting is
passed by tenants that do not make it wait longer (`Reserved.room_beside`). A gang that wants
several types stands in the line of each and starts when it is at the head of all those that it
takes slices from. So gangs that share no type never wait for each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.lines import Entry
from shared_pathways_service.scheduling.book.records import Pool, Slice, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.backfill import Backfill

__all__ = ["Scheduler", "grantable_to"]

#: Of those that were promised slices, how many are looked at when slices come free by themselves.
_PROMISED = 8
#: Tenants whose elastic slices a reservation keeps waiting that may be passed at most.
_PASSED = 32


class Scheduler:
    """Places whoever can be placed.

    Attributes:
      relieve: Has a waiting tenant that was promised slices take free ones of a pool instead, as
        far as somebody can be spared by that; returns whether it did.
      move: Begins to move the holder of a slice that is drained to a free one.
      stay: Tells the holder of one that was to be moved, and has nowhere to go any more.
    """

    relieve: Callable[[Tenant, Pool], bool]
    move: Callable[[Slice], None]
    stay: Callable[[Slice], None]

    def __init__(self, ledger: Ledger, speaker: Speaker) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._backfill = Backfill(ledger)

    def run(self) -> None:
        """Serves each pool that changed, and those that change by that."""
        unserved = self._ledger.unserved
        while unserved:
            pool = next(iter(unserved))
            del unserved[pool]
            self._serve(pool)

    def start(self, tenant: Tenant) -> bool:
        """Places a gang with as many slices as it can have, if those are enough to start."""
        promised, granted, total = tenant.promised, {}, 0
        for pool, count in tenant.wants.items():
            could = grantable_to(tenant, pool)
            if promised:
                could += len(promised.get(pool, ()))
            granted[pool] = could = min(could, count)
            total += could
        if total < tenant.needed:
            return False
        self._begin(tenant, granted)
        return True

    def _serve(self, pool: Pool) -> None:
        while pool.free and (lost := pool.repairs.first()):
            self._place_running(lost[-1], lost[2], pool)
        while pool.free and pool.drains:
            self.move(next(iter(pool.drains)))
        for drained in pool.drains:
            if drained.moves_at is not None:
                self.stay(drained)
        if not pool.waiting.entries and not pool.fills.entries:
            return
        while self._ledger.reserves and pool.grantable and self._serve_owner(pool):
            pass
        while pool.grantable and self._serve_one(pool):
            pass
        while pool.grantable and (found := self._backfill.next(pool)):
            self._begin(*found)

    def _serve_owner(self, pool: Pool) -> bool:
        """Gives slices that are reserved to one of those for whom they are; False: nobody."""
        for *_, tenant in pool.waiting.entries:
            if any(_own_room(tenant, wanted) for wanted in tenant.wants):
                granted = {
                    wanted: min(count, _kept_for(tenant, wanted))
                    for wanted, count in tenant.wants.items()
                }
                if sum(granted.values()) >= tenant.needed:
                    self._begin(tenant, granted)
                    return True
        for *_, index, tenant in pool.fills.entries:
            if _own_room(tenant, pool):
                self._place_running(tenant, index, pool)
                return True
        return False

    def _serve_one(self, pool: Pool) -> bool:
        """Gives free slices to whoever is next; False: nobody can use any now."""
        first, fill = pool.first_open(), _next_fill(pool)
        if pool.planned.entries:
            for entry in pool.planned.entries[:_PROMISED]:
                if (first is not None and first < entry) or (fill is not None and fill < entry):
                    break
                if self.start(entry[-1]) or self.relieve(entry[-1], pool):
                    return True
        if fill is not None and (first is None or fill < first):
            self._place_running(fill[-1], fill[2], pool)
            return True
        return first is not None and self.start(first[-1])

    def _place_running(self, tenant: Tenant, index: int, pool: Pool) -> None:
        self._ledger.stop_wanting(tenant, index)
        self._place(tenant, index, self._ledger.take_free(pool))
        # The gang was placed before; its proxy may have come back while it was not whole.
        self._speaker.tell_running(tenant)

    def _place(self, tenant: Tenant, index: int, onto: Slice) -> None:
        self._ledger.place(tenant, index, onto)
        self._speaker.placed(tenant, index, onto)

    def _begin(self, tenant: Tenant, granted: dict[Pool, int]) -> None:
        ledger, promised = self._ledger, tenant.promised
        ledger.dequeue(tenant)
        tenant.running = True
        tenant.preempted = tenant.idled = False
        tenant.since = ledger.now
        ledger.decide_tenant(tenant, DecisionKind.RUNNING, ends=True)
        for index, pool in enumerate(tenant.pools):
            if granted[pool]:
                granted[pool] -= 1
                kept = promised.get(pool)
                if kept:
                    onto = kept[0]
                    ledger.keep_no_more(onto)
                    # Nobody looks for free slices before this one is held.
                else:
                    onto = ledger.take_free(pool)
                self._place(tenant, index, onto)
            else:
                ledger.want_fill(tenant, index)
        if promised:
            ledger.end_promises(tenant)
        self._speaker.running(tenant)


def grantable_to(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices of a pool a waiting tenant could have now, others before it.

    What is promised to it is not counted.
    """
    # A line that has not been served yet may still have free slices for those who go first.
    if pool.repairs.entries or pool.drains:
        return 0
    first, fill = pool.first_open(), pool.fills.first()
    if first is not None and first[-1] is not tenant and first[:2] < tenant.rank:
        return 0
    if fill is not None and fill[:2] < tenant.rank:
        return _room_past_fills(tenant, pool)
    return pool.room_for(tenant)


def _next_fill(pool: Pool) -> Entry[Tenant] | None:
    """Returns the first elastic slice that may be placed now; None: there is none."""
    fill = pool.fills.first()
    if fill is None or pool.room_for(fill[-1]):
        return fill
    first_of_each = {entry[-1]: entry for entry in reversed(pool.fills.entries)}
    behind = sorted(first_of_each.values())[1 : 1 + _PASSED]
    return next((entry for entry in behind if _room_past_fills(entry[-1], pool)), None)


def _room_past_fills(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices a tenant may have before elastic slices that are before it."""
    reserved = pool.reserved
    if reserved is None:
        return 0
    fills = itertools.takewhile(lambda entry: entry[:2] < tenant.rank, pool.fills.entries)
    before = dict.fromkeys(entry[-1] for entry in fills)
    if len(before) > _PASSED:
        return 0
    return min(reserved.room_beside(tenant, running) for running in before)


def _own_room(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices of a pool are reserved for a tenant, whoever is before it."""
    if pool.reserved is None or pool.repairs or pool.drains:
        return 0
    return pool.reserved.own_room(tenant)


def _kept_for(tenant: Tenant, pool: Pool) -> int:
    """Returns how many slices of a pool a tenant could have: by a promise, a right, its turn."""
    promised = len(tenant.promised.get(pool, ()))
    return promised + max(_own_room(tenant, pool), grantable_to(tenant, pool))
