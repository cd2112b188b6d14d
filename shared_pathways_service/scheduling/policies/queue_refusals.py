"""Refuses tenants that do not queue, whose queue timeout has passed, or that can never start.

A tenant that does not queue is refused as soon as the slices that it wants are taken, but not while
the service starts: its slices may be among those that are not ready yet. A tenant that has run
waits without a timeout, unless the service has fewer slices now than it ran on.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from shared_pathways_service.scheduling.book.actions import Actions
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    Dequeued,
    PromiseBegan,
    PromiseEnded,
    Queued,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import RefusalKind
from shared_pathways_service.scheduling.book.needs import needs_of
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.wait_reasons import holders_of, position_of
from shared_pathways_service.scheduling.policies.policy import Policy
from shared_pathways_service.scheduling.policies.spares import (
    could_fit,
    spares_in_the_way,
    spares_out_of_reach,
    too_many,
)

__all__ = ["Refusals", "Refuse"]


class Refusals(Policy):
    """Its state: tenants that do not queue, and are neither placed nor refused yet."""

    def __init__(self, config: RmConfig, ledger: Ledger, deadlines: Deadlines) -> None:
        self._ledger = ledger
        self._deadlines = deadlines
        self._undecided: dict[Tenant, None] = {}
        self._starting_until = until = ledger.now + config.starting_grace_s
        # Tenants that wait for a starting service are decided on when that time is over.
        deadlines.add(lambda: until, lambda: None)

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Changes of the queue."""
        return {
            Queued: self._queued,
            Dequeued: self._decided,
            PromiseBegan: self._decided,
            PromiseEnded: self._promise_ended,
        }

    def refuse(self) -> Actions | None:
        """Refuses a tenant that does not want to queue and has no reason left to wait."""
        if not self._undecided or (hopeless := self._first_hopeless()) is None:
            return None
        return iter((Refuse(hopeless),))

    def validate(self, *, recovering: bool) -> None:
        """Checks that undecided tenants are queued."""
        del recovering
        assert all(one.is_queued and not one.gone for one in self._undecided)

    def _queued(self, change: Queued) -> None:
        tenant = change.tenant
        if tenant.has_run:
            if not could_fit(tenant.wants, tenant.gang):
                # It ran on more slices than the service has now, so it can never start.
                self._undecided[tenant] = None
        elif (timeout_s := tenant.request.queue_timeout_s) is None:
            self._undecided[tenant] = None
        elif math.isfinite(timeout_s):
            until = tenant.asked_at + timeout_s
            self._deadlines.add(
                lambda: None if tenant.running or tenant.has_run or tenant.gone else until,
                lambda: iter((Refuse(tenant),)),
            )

    def _decided(self, change: Dequeued | PromiseBegan) -> None:
        self._undecided.pop(change.tenant, None)

    def _promise_ended(self, change: PromiseEnded) -> None:
        tenant = change.tenant
        if tenant.request.queue_timeout_s is None and not tenant.has_run:
            self._undecided[tenant] = None

    def _first_hopeless(self) -> Tenant | None:
        if self._ledger.now >= self._starting_until:
            return next(iter(self._undecided))
        left = {pool: _left_when_started(pool) for pool in self._ledger.pools.values()}
        for tenant in self._undecided:
            hoped = sum(min(want, left[pool][tenant]) for pool, want in tenant.wants.items())
            if hoped < tenant.gang:
                return tenant
        return None


def _left_when_started(pool: Pool) -> dict[Tenant, int]:
    """Returns how many slices of a pool each waiting tenant can have after all those before it.

    Computed for the whole line at once: every tenant may want slices of a starting service.
    """
    if pool.ready + pool.barred >= pool.count:
        # No more slices will become ready: the free ones go to the first tenant.
        left = dict.fromkeys((entry[-1] for entry in pool.waiting.entries), 0)
        left.update((tenant, pool.room_for(tenant)) for tenant in list(left)[:1])
        return left
    left = {}
    rest = pool.usable - pool.held - len(pool.repairs) - len(pool.fills)
    for *_, tenant in pool.waiting.entries:
        left[tenant] = max(0, rest)
        rest -= tenant.wants[pool]
    return left


@dataclasses.dataclass(eq=False, slots=True)
class Refuse:
    """Refuses a waiting tenant: others have the slices, or there are fewer than when it ran."""

    tenant: Tenant

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Sends the tenant the reason, and removes it."""
        tenant, kind = self.tenant, RefusalKind.SLICES_TAKEN
        timeout_s = tenant.request.queue_timeout_s
        position = None if timeout_s is None else position_of(tenant)
        message = speaker.reason(tenant)
        spares, needs = spares_in_the_way(tenant), needs_of(tenant)
        if not could_fit(tenant.wants, tenant.gang):
            spares = spares_out_of_reach(tenant.wants, tenant.gang)
            kind, position, message = RefusalKind.TOO_MANY, None, too_many(tenant.wants)
        if position is not None:
            message = f"{message}; at position {position} after {timeout_s:g} s"
        speaker.refused(
            tenant,
            kind,
            message,
            position=position,
            holders=holders_of(tenant.wants),
            spares=spares,
            waiting_is_futile=needs is not None,
        )
        if not tenant.connected:
            ledger.remember_end(tenant, kind, message)
        ledger.remove_tenant(tenant, message)
