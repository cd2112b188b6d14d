"""Authoritative state: slices, tenants, assignments, queues, and consistent indices of them.

The ledger decides nothing: callers request each change, and it updates its indices accordingly.
"""

from __future__ import annotations

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.assignments import Assignments
from shared_pathways_service.scheduling.book.changes import (
    Dequeued,
    NoticeEnded,
    NoticeGiven,
    PromiseBegan,
    PromiseEnded,
    Queued,
    TenantEntered,
    TenantLeft,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.messages import RefusalKind
from shared_pathways_service.scheduling.book.records import (
    Notice,
    Tenant,
)

__all__ = ["Ledger"]

#: Ended tenants that are remembered, so that a proxy that comes back late gets the reason.
_ENDED_LIMIT = 10_000


class Ledger(Assignments):
    """The resource manager's book.

    Attributes:
      tenants: Every tenant that is not gone, by name.
      ended: The reasons for which ended tenants are gone, by incarnation.
    """

    def __init__(self, config: RmConfig, now: float) -> None:
        super().__init__(config, now)
        self.tenants: dict[str, Tenant] = {}
        self.ended: dict[str, tuple[str, RefusalKind, str]] = {}

    # ---- notices and promises

    def give_notice(self, victim: Tenant, notice: Notice) -> None:
        """Sets a preemption notice: a running tenant's slices will be taken."""
        victim.notice = notice
        self.changes.publish(NoticeGiven(victim))
        self.write(victim)

    def postpone(self, victim: Tenant, until: float) -> None:
        """Postpones the preemption of a tenant under notice to `until` at the earliest."""
        notice = victim.notice
        if notice is not None and notice.ends_at < until:
            notice.ends_at = until
            self.write(victim)

    def end_notice(self, victim: Tenant) -> None:
        """Clears a preemption notice (withdrawn or executed)."""
        victim.notice = None
        self.changes.publish(NoticeEnded(victim))
        for pool in victim.wants:
            self.holder_changed(pool, victim)
        self.write(victim)

    def begin_promise(self, tenant: Tenant) -> None:
        """Begins a promise: a waiting tenant steps aside; slices are reserved until it starts."""
        tenant.has_promise = True
        for pool in tenant.wants:
            pool.planned.add(tenant)
        # The tenants behind it are at the heads of their lines now.
        self.open_pools(tenant.wants)
        self.changes.publish(PromiseBegan(tenant))

    def end_promise(self, tenant: Tenant) -> None:
        """Ends a promise: the tenant starts, or waits in its line. Its slices stay reserved."""
        tenant.has_promise = False
        self.changes.publish(PromiseEnded(tenant))
        for pool in tenant.wants:
            pool.planned.remove(tenant)
        self.changes.line_changed(tenant.wants)

    def release_kept(self, tenant: Tenant) -> None:
        """Frees the slices that are still reserved for a tenant."""
        for kept in [one for line in tenant.promised.values() for one in line]:
            self.keep_no_more(kept)
        tenant.promised = {}

    # ---- lines

    def enqueue(self, tenant: Tenant) -> None:
        """Puts a tenant in the line of each type that it wants."""
        for pool in tenant.wants:
            if len(self.pools) > 1 and (head := pool.first_open()) and head[:2] > tenant.rank:
                # A tenant that is no longer a head does not block its other lines.
                self.open_pools(head[-1].wants)
            pool.waiting.add(tenant)
        self.changes.publish(Queued(tenant))
        self.changes.line_changed(tenant.wants)
        self.write(tenant)

    def dequeue(self, tenant: Tenant) -> None:
        """Takes a waiting tenant out of its lines, and ends its promise."""
        if tenant.has_promise:
            self.end_promise(tenant)
        for pool in tenant.wants:
            pool.waiting.remove(tenant)
        self.changes.publish(Dequeued(tenant))
        self.changes.line_changed(tenant.wants)

    def want_repair(self, tenant: Tenant, index: int) -> None:
        """Puts a lost virtual slice in line for another slice."""
        tenant.lost.add(index)
        tenant.pools[index].repairs.add(tenant, index)
        self.changes.line_changed((tenant.pools[index],))
        self.write(tenant)

    def want_fill(self, tenant: Tenant, index: int) -> None:
        """Puts an elastic virtual slice that was not placed yet in line."""
        tenant.pools[index].fills.add(tenant, index)
        self.changes.line_changed((tenant.pools[index],))

    def stop_wanting(self, tenant: Tenant, index: int) -> None:
        """Takes a virtual slice of a running tenant out of its line."""
        pool = tenant.pools[index]
        (pool.repairs if index in tenant.lost else pool.fills).remove(tenant, index)
        self.changes.line_changed((pool,))

    def begin_service(self) -> None:
        """Has all pools served after a recovery, during which none was."""
        self.changes.line_changed(self.pools.values())

    # ---- tenants

    def add_tenant(self, tenant: Tenant) -> None:
        """Adds a tenant; its slices or its place in line are added after that."""
        self.tenants[tenant.name] = tenant
        self.changes.publish(TenantEntered(tenant))
        self.write(tenant)

    def remove_tenant(self, tenant: Tenant, reason: str = "") -> None:
        """Removes a tenant, its placements, and its places in line.

        The caller records the decision; `reason` is recorded with the placements that end.
        """
        if tenant.running:
            for index in range(len(tenant.pools)):
                if index not in tenant.placed:
                    self.stop_wanting(tenant, index)
        elif tenant.parked is None:
            self.dequeue(tenant)
        for held in list(tenant.placed.values()):
            self.let_go(held, DecisionKind.FREED, reason)
        if tenant.promised:
            self.release_kept(tenant)
        if tenant.notice is not None:
            self.end_notice(tenant)
        del self.tenants[tenant.name]
        self.write_no_more(tenant)
        tenant.gone = True
        self.changes.publish(TenantLeft(tenant))

    def remember_end(self, tenant: Tenant, kind: RefusalKind, why: str) -> None:
        """Remembers the refusal to send to a proxy that comes back after its tenant is gone."""
        self.ended[tenant.incarnation] = (tenant.name, kind, why)
        if len(self.ended) > _ENDED_LIMIT:
            del self.ended[next(iter(self.ended))]
