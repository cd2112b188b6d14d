"""Who is preempted so that whom of higher priority can start.

A waiting tenant that is at the head of the line of every type that it wants, and whose priority is
higher than that of tenants that run, may have some of these preempted: as few as it takes, those of
the lowest priority first, of equal ones the youngest, and only if it can start by that. They are
given notice; when the grace is over their slices go to it at once, and they wait in the queue, at
the place that they had when they came, and are placed anew.

A plan is a promise. Free slices that it counts on, and slices that one under notice leaves early,
are kept for it, and nobody is under notice for two. So the next in line may plan as well, around
it. Slices that come free meanwhile may make victims superfluous: their notice is withdrawn, as it
is when the one that they should make room for goes away. What breaks meanwhile is made up for by
others, or the plan is given up.

An event costs what it changes: only the first of those without a plan, in pools whose free slices,
holders or lines changed, is looked at, and its victims are found by an index.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from shared_pathways_service.api.priorities import describe_priority
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import HEARD_S, Notice, Plan, Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.placement_order import Scheduler, grantable_to
from shared_pathways_service.scheduling.policies.vacating import vacate

__all__ = ["Preemption"]


class Preemption:
    """Plans who is preempted, gives notice, and carries it out."""

    def __init__(
        self,
        config: RmConfig,
        ledger: Ledger,
        speaker: Speaker,
        deadlines: Deadlines,
        scheduler: Scheduler,
    ) -> None:
        self._grace_s = config.preemption_grace_s
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._scheduler = scheduler
        self._untold: dict[Tenant, None] = {}
        self._preempted: dict[Tenant, None] = {}
        scheduler.relieve = self.relieve

    def run(self) -> None:
        """Mends the plans that lost something, makes those that can be made, withdraws notices."""
        ledger = self._ledger
        unplanned = ledger.unplanned
        if len(unplanned) == 1 and not ledger.shaken and not ledger.orphans:
            # Nearly every event: one pool, whose first is of no higher priority than who holds it.
            pool = next(iter(unplanned))
            first = pool.first_open()
            if first is None or (
                len(first[-1].wants) == 1 and first[-1].priority <= pool.yielding.lowest
            ):
                unplanned.clear()
        while ledger.shaken or unplanned:
            if ledger.shaken:
                tenant = next(iter(ledger.shaken))
                del ledger.shaken[tenant]
                if tenant.plan is not None:
                    self._mend(tenant, tenant.plan)
            else:
                pool = next(iter(unplanned))
                del unplanned[pool]
                self._plan_first(pool)
            if ledger.unserved:
                self._scheduler.run()
        if ledger.orphans or self._untold or self._preempted:
            self._tell()

    def _tell(self) -> None:
        """Tells who is under notice, who is no longer, and who was preempted."""
        ledger = self._ledger
        for victim in list(ledger.orphans):
            notice = victim.notice
            ledger.end_notice(victim)
            if notice is not None and notice.told:
                self._speaker.preempting_no_more(victim, notice)
        for victim in self._untold:
            notice = victim.notice
            if notice is not None and notice.told != notice.said:
                notice.told = notice.said
                self._speaker.preempting(victim)
        self._untold.clear()
        for victim in self._preempted:
            if victim.preempted and not victim.gone:
                self._speaker.queued(victim)
        self._preempted.clear()
        # Whoever is no longer under notice could be again, but those that were looked at just now
        # do not want it.
        ledger.unplanned.clear()

    def relieve(self, tenant: Tenant, pool: Pool) -> bool:
        """Has a planned tenant take free slices of a pool, if that spares somebody."""
        plan = tenant.plan
        free = grantable_to(tenant, pool)
        if plan is None or not free:
            return False
        most = min(free, tenant.wants[pool] - len(tenant.promised.get(pool, ())))
        if not self._superfluous(plan, {pool: most}):
            return False  # nor would fewer spare anybody
        for count in range(1, most + 1):
            if self._superfluous(plan, {pool: count}):
                for _ in range(count):
                    self._keep_one(tenant, pool)
                self._prune(plan)
                return True
        return False

    # ---- plans

    def _plan_first(self, pool: Pool) -> None:
        while (entry := pool.first_open()) is not None:
            tenant = entry[-1]
            if not self._ledger.orphans:
                for wanted in tenant.wants:
                    if wanted.yielding.lowest < tenant.priority:
                        break
                else:
                    return  # nobody of lower priority holds what it wants
            for wanted in tenant.wants:
                first = wanted.first_open()
                if first is None or first[-1] is not tenant:
                    return
            if not self._plan(tenant):
                return

    def _plan(self, tenant: Tenant) -> bool:
        """Makes a plan for a tenant at the head of its lines; False: none would let it start."""
        chosen = self._choose(tenant, {})
        if chosen is None:
            return False
        plan = Plan(preemptor=tenant, victims={}, ends_at=self._ledger.now)
        self._keep_free(tenant)
        self._ledger.begin_plan(plan)
        self._give_notice(plan, chosen)
        self._prune(plan)
        return True

    def returned(self, tenant: Tenant) -> None:
        """Goes on with what waited for a proxy that is there again."""
        notice, plan = tenant.notice, tenant.plan
        if notice is not None and notice.is_old:
            notice.is_old = False
            self._ledger.postpone(tenant, self._ledger.now + min(self._grace_s, HEARD_S))
            if notice.plan is not None:
                notice.plan.ends_at = max(notice.plan.ends_at, notice.ends_at)
        if plan is not None and plan.waits:
            plan.waits = False
            self._await(plan)

    def _await(self, plan: Plan) -> None:
        self._deadlines.add(
            lambda: plan.ends_at if plan.live and not plan.waits else None,
            lambda: self._carry_out(plan),
        )

    def _mend(self, tenant: Tenant, plan: Plan) -> None:
        """Makes a plan right again that has lost victims, their slices, or what was kept for it."""
        if self._scheduler.start(tenant):
            return
        chosen = self._choose(tenant, plan.victims)
        if chosen is None:
            self._ledger.end_plan(tenant)
            self._ledger.end_promises(tenant)
            if tenant.queue_timeout is None and not tenant.has_run:
                self._ledger.undecided[tenant] = None
            return
        self._keep_free(tenant)
        self._give_notice(plan, chosen)
        self._prune(plan)

    def _choose(self, tenant: Tenant, victims: dict[Tenant, None]) -> list[Tenant] | None:
        """Returns who else must be preempted; None: it cannot start even then."""
        has = {
            pool: min(count, len(tenant.promised.get(pool, ())) + grantable_to(tenant, pool))
            for pool, count in _wants(tenant).items()
        }
        for victim in victims:
            _add(has, tenant, victim)
        lacks = tenant.needed - sum(has.values())
        if lacks <= 0:
            return []
        if not self._may_suffice(tenant, has):
            return None
        chosen = []
        for victim in self._candidates(tenant):
            gained = _add(has, tenant, victim)
            if gained:
                chosen.append(victim)
                lacks -= gained
                if lacks <= 0:
                    return chosen
        return None

    def _may_suffice(self, tenant: Tenant, has: dict[Pool, int]) -> bool:
        """Whether all of lower priority together would do; asked before any is looked at."""
        could, wants = 0, _wants(tenant)
        for pool, count in has.items():
            pool.yielding.refresh(pool.yield_of)
            below = pool.yielding.below(tenant.priority)
            below += sum(
                _yield_of(pool, one)
                for one in self._ledger.orphans
                if one.priority < tenant.priority
            )
            could += min(wants[pool], count + below)
        return could >= tenant.needed

    def _candidates(self, tenant: Tenant) -> Iterator[Tenant]:
        """Yields each tenant of lower priority once, first those that are under notice already."""
        orphans = [one for one in self._ledger.orphans if one.priority < tenant.priority]
        yield from sorted(orphans, key=lambda one: (one.priority, -one.order))
        lines = (pool.yielding.in_order(tenant.priority) for pool in tenant.wants)
        last = None
        for *_, victim in heapq.merge(*lines, key=lambda entry: entry[:2]):
            if victim is not last:
                last = victim
                yield victim

    def _give_notice(self, plan: Plan, chosen: list[Tenant]) -> None:
        if not chosen:
            return
        who = plan.preemptor
        said = f"{who.label} of priority {describe_priority(who.priority)}"
        for victim in chosen:
            known = victim.notice
            ends_at = self._ledger.now + self._grace_s if known is None else known.ends_at
            told, is_old = ("", False) if known is None else (known.told, known.is_old)
            self._ledger.orphans.pop(victim, None)
            self._ledger.give_notice(
                victim,
                Notice(
                    by=who.name, said=said, ends_at=ends_at, plan=plan, told=told, is_old=is_old
                ),
            )
            self._untold[victim] = None
            plan.victims[victim] = None

    def _prune(self, plan: Plan) -> None:
        """Spares whom the plan can do without; it is due when the others have had their time."""
        for victim in self._superfluous(plan, {}):
            self._ledger.spare(plan, victim)
        before = plan.ends_at
        ends = [victim.notice.ends_at for victim in plan.victims if victim.notice is not None]
        plan.ends_at = max(ends, default=self._ledger.now)
        # A time that went back, or that has come already, is in no deadline any more.
        if (plan.ends_at < before or before <= self._ledger.now) and not plan.waits:
            self._await(plan)

    def _superfluous(self, plan: Plan, more: dict[Pool, int]) -> list[Tenant]:
        """Returns victims that a plan could do without, had it `more` free slices."""
        tenant = plan.preemptor
        wants = _wants(tenant)
        has = {pool: len(tenant.promised.get(pool, ())) + more.get(pool, 0) for pool in wants}
        least: float = math.inf
        for victim in plan.victims:
            yields = 0
            for pool in wants:
                count = _yield_of(pool, victim)
                has[pool] += count
                yields += count
            least = min(least, yields)
        if sum(has.values()) - least < tenant.needed:
            return []  # most often: none can be done without
        # Who would be disturbed most is spared first.
        spared: list[Tenant] = []
        for victim in sorted(plan.victims, key=lambda one: (-one.priority, one.order)):
            without = {pool: count - _yield_of(pool, victim) for pool, count in has.items()}
            if sum(min(count, wants[pool]) for pool, count in without.items()) >= tenant.needed:
                spared.append(victim)
                has = without
        return spared

    def _keep_free(self, tenant: Tenant) -> None:
        """Keeps the free slices for a tenant that it could have now."""
        for pool, wanted in tenant.wants.items():
            lacks = wanted - len(tenant.promised.get(pool, ()))
            for _ in range(min(lacks, grantable_to(tenant, pool))):
                self._keep_one(tenant, pool)

    def _keep_one(self, tenant: Tenant, pool: Pool) -> None:
        self._ledger.keep(self._ledger.take_free(pool), tenant)

    # ---- deeds

    def _carry_out(self, plan: Plan) -> None:
        tenant = plan.preemptor
        if tenant in self._ledger.shaken:
            # It lost a slice at this very moment, and may not suffice any more.
            del self._ledger.shaken[tenant]
            self._mend(tenant, plan)
            if not plan.live or plan.ends_at > self._ledger.now:
                return
        if not tenant.connected:
            # It may be gone for good, and nobody is to lose its work for that.
            plan.waits = True
            return
        reason = f"preempted by {tenant.label} of priority {describe_priority(tenant.priority)}"
        plan.is_due = True
        for victim in list(plan.victims):
            self._preempt(victim, reason, tenant.name)
        if not self._scheduler.start(tenant):
            plan.is_due = False
            self._ledger.shaken[tenant] = None

    def _preempt(self, victim: Tenant, reason: str, by: str) -> None:
        """Takes all slices from a tenant, which goes back to its place in the queue."""
        ledger = self._ledger
        vacate(ledger, self._speaker, victim, reason, related=by)
        notice = victim.notice
        if notice is not None and notice.plan is not None:
            del notice.plan.victims[victim]
        victim.preempted = victim.was_queued = True
        ledger.decide_tenant(victim, DecisionKind.PREEMPTED, reason, ends=False, related=by)
        ledger.end_notice(victim)
        ledger.enqueue(victim)
        self._speaker.preempted(victim, reason)
        self._preempted[victim] = None


def _add(has: dict[Pool, int], tenant: Tenant, victim: Tenant) -> int:
    """Adds to what a tenant has what it would gain by a victim; returns how much that is."""
    gained, wants = 0, _wants(tenant)
    for pool, count in has.items():
        more = min(_yield_of(pool, victim), wants[pool] - count)
        if more > 0:
            has[pool] += more
            gained += more
    return gained


def _wants(tenant: Tenant) -> dict[Pool, int]:
    """Returns what a tenant wants, as far as others' reservations let it have that at all."""
    if all(pool.reserved is None for pool in tenant.wants):
        return tenant.wants
    return {pool: min(count, pool.most_for(tenant)) for pool, count in tenant.wants.items()}


def _yield_of(pool: Pool, victim: Tenant) -> int:
    held = pool.holders.get(victim, 0)
    return pool.useful(victim, held) if held else 0
