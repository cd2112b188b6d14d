"""Who is placed next.

A pool's free slices go, in this order, to

1. lost virtual slices of running tenants (spares may be used for them),
2. waiting gangs, and elastic virtual slices of running tenants that were never placed, by priority
   and then by arrival. Spares are kept back from these.

The line of each instance type is strict: nobody passes whoever is at its head, also where the head
does not fit and a later one would (filling such gaps is left to a scheduler that knows how long
work takes). A gang that wants several types stands in the line of each and starts when it is at the
head of all those that it takes slices from. So gangs that share no type never wait for each other.
"""

from __future__ import annotations

from shared_pathways_service.core.rm.decisions import DecisionKind
from shared_pathways_service.core.rm.ledger import Ledger
from shared_pathways_service.core.rm.records import Pool, Tenant
from shared_pathways_service.core.rm.speaker import Speaker

__all__ = ["Scheduler"]


class Scheduler:
    """Places whoever can be placed."""

    def __init__(self, ledger: Ledger, speaker: Speaker) -> None:
        self._ledger = ledger
        self._speaker = speaker

    def run(self) -> None:
        """Serves each pool that changed, and those that change by that."""
        unserved = self._ledger.unserved
        while unserved:
            pool = next(iter(unserved))
            del unserved[pool]
            self._serve(pool)

    def _serve(self, pool: Pool) -> None:
        while pool.free and (lost := pool.repairs.first()):
            self._place_running(lost[-1], lost[2], pool)
        while pool.grantable:
            waiting, fill = pool.waiting.first(), pool.fills.first()
            if fill is not None and (waiting is None or fill < waiting):
                self._place_running(fill[-1], fill[2], pool)
            elif waiting is None or not self._start(waiting[-1]):
                return

    def _place_running(self, tenant: Tenant, index: int, pool: Pool) -> None:
        self._ledger.stop_wanting(tenant, index)
        self._place(tenant, index, pool)
        # The gang was placed before; its proxy may have come back while it was not whole.
        self._speaker.tell_running(tenant)

    def _place(self, tenant: Tenant, index: int, pool: Pool) -> None:
        onto = self._ledger.take_free(pool)
        self._ledger.place(tenant, index, onto)
        self._speaker.placed(tenant, index, onto)

    def _start(self, tenant: Tenant) -> bool:
        """Places a gang with as many slices as it can have, if those are enough to start."""
        granted = {
            pool: min(count, _grantable_to(tenant, pool)) for pool, count in tenant.wants.items()
        }
        if sum(granted.values()) < tenant.needed:
            return False
        self._ledger.dequeue(tenant)
        tenant.running = True
        tenant.since = self._ledger.now
        self._ledger.decide_tenant(tenant, DecisionKind.RUNNING, ends=True)
        for index, pool in enumerate(tenant.pools):
            if granted[pool]:
                granted[pool] -= 1
                self._place(tenant, index, pool)
            else:
                self._ledger.want_fill(tenant, index)
        self._speaker.running(tenant)
        return True


def _grantable_to(tenant: Tenant, pool: Pool) -> int:
    """Returns how many slices of a pool a waiting tenant could have now, others before it."""
    waiting, fill = pool.waiting.first(), pool.fills.first()
    assert waiting is not None
    # A line that has not been served yet may still have free slices for those who go first.
    preceded = waiting[-1] is not tenant or (fill is not None and fill < waiting)
    return 0 if pool.repairs or preceded else pool.grantable
