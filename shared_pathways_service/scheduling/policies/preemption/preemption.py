"""The preemption policy: makes, corrects, and carries out plans."""

from __future__ import annotations

from collections.abc import Mapping

from shared_pathways_service.api.priorities import describe_priority
from shared_pathways_service.scheduling.book.actions import Actions, Start
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    HoldingChanged,
    LineChanged,
    NoticeEnded,
    NoticeGiven,
    PromisedSliceLost,
    PromiseEnded,
    ShelterChanged,
    SlicesFreed,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.persisted import PersistedGrant
from shared_pathways_service.scheduling.book.precedence import grantable_to
from shared_pathways_service.scheduling.book.records import NOTICE_DELIVERY_S, Notice, Pool, Tenant
from shared_pathways_service.scheduling.policies.placement_order import startable
from shared_pathways_service.scheduling.policies.policy import Policy
from shared_pathways_service.scheduling.policies.preemption.plans import (
    Plan,
    Plans,
    superfluous_victims,
)
from shared_pathways_service.scheduling.policies.preemption.preemption_actions import (
    BeginPromise,
    EndPromise,
    GiveNotice,
    KeepFree,
    PostponeNotice,
    Preempt,
    QueueAgain,
    SendNotice,
    SendPlace,
    WithdrawNotice,
)
from shared_pathways_service.scheduling.policies.preemption.victims import Victims, choose_victims

__all__ = ["Preemption"]


class Preemption(Policy):
    """Plans preemptions, gives notice of them, and carries them out.

    Its state: the plans, the preemptor named to each tenant under notice, and changes since the
    last step: pools whose first tenant may plan, and tenants whose plan lost something.
    """

    def __init__(self, config: RmConfig, ledger: Ledger, deadlines: Deadlines) -> None:
        self._grace_s = config.preemption_grace_s
        self._ledger = ledger
        self._deadlines = deadlines
        self._plans = Plans()
        self._index = {pool: Victims(pool) for pool in ledger.pools.values()}
        self._to_plan: dict[Pool, None] = {}
        self._damaged: dict[Tenant, None] = {}
        # Of the tenants under notice: the preemptor named to each; those that may not have been
        # notified, as the resource manager was restarted since; those still to be notified.
        self._notified: dict[Tenant, str] = {}
        self._unconfirmed: dict[Tenant, None] = {}
        self._to_notify: dict[Tenant, None] = {}
        self._preempted: dict[Tenant, None] = {}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Changes of free slices, lines, holders, notices and promises."""
        return {
            SlicesFreed: self._pool_changed,
            LineChanged: self._pool_changed,
            HoldingChanged: self._holding_changed,
            ShelterChanged: self._shelter_changed,
            NoticeGiven: self._notice_given,
            NoticeEnded: self._notice_ended,
            PromiseEnded: self._promise_ended,
            PromisedSliceLost: self._promised_slice_lost,
        }

    def act(self) -> Actions | None:
        """Corrects a plan that lost something, or makes one that can be made."""
        to_plan = self._to_plan
        if self._damaged:
            tenant = next(iter(self._damaged))
            del self._damaged[tenant]
            return self._correct(self._plans.of[tenant]) if tenant in self._plans.of else iter(())
        if not to_plan:
            return None
        pool = next(iter(to_plan))
        del to_plan[pool]
        if not self._plans.unclaimed:
            # At nearly every event, the first tenant has no higher priority than any holder.
            first = pool.first_open()
            if first is None or (
                len(first[-1].wants) == 1 and first[-1].request.priority <= self._index[pool].lowest
            ):
                return iter(()) if to_plan else None
        return self._plan_first(pool)

    def conclude(self) -> Actions:
        """Notifies tenants that are under notice, no longer are, or were preempted."""
        if self._plans.unclaimed or self._to_notify or self._preempted:
            return self._notify()
        return ()

    def _notify(self) -> Actions:
        for victim in list(self._plans.unclaimed):
            yield WithdrawNotice(victim, was_notified=victim in self._notified)
        for victim in self._to_notify:
            notice = victim.notice
            if notice is not None and self._notified.get(victim) != notice.said:
                self._notified[victim] = notice.said
                yield SendNotice(victim)
        self._to_notify.clear()
        for victim in self._preempted:
            if victim.preempted and not victim.gone:
                yield SendPlace(victim)
        self._preempted.clear()
        # Tenants whose notice was withdrawn may be given notice again, but the tenants that were
        # just considered do not need them.
        self._to_plan.clear()

    def relieve(self, tenant: Tenant, pool: Pool) -> Actions | None:
        """Has a tenant with a plan take free slices of a pool, if that spares a victim."""
        plan = self._plans.of.get(tenant)
        free = grantable_to(tenant, pool)
        if plan is None or not free:
            return None
        most = min(free, tenant.wants[pool] - len(tenant.promised.get(pool, ())))
        if not superfluous_victims(plan, {pool: most}):
            return None  # nor would fewer slices spare any
        enough = (some for some in range(1, most + 1) if superfluous_victims(plan, {pool: some}))
        return self._keep_some(plan, pool, next(enough))

    def _keep_some(self, plan: Plan, pool: Pool, count: int) -> Actions:
        for _ in range(count):
            yield KeepFree(pool, plan.preemptor)
        self._prune(plan)

    def returned(self, tenant: Tenant) -> Actions:
        """Gives a victim time to receive its notice; resumes a plan that waited for its proxy."""
        notice, plan = tenant.notice, self._plans.of.get(tenant)
        if notice is not None and tenant in self._unconfirmed:
            del self._unconfirmed[tenant]
            yield PostponeNotice(tenant, self._ledger.now + min(self._grace_s, NOTICE_DELIVERY_S))
            if (of := self._plans.of_victim.get(tenant)) is not None:
                of.ends_at = max(of.ends_at, notice.ends_at)
        if plan is not None and plan.waits:
            plan.waits = False
            self._await(plan)

    def restored(self, tenant: Tenant, grant: PersistedGrant) -> None:
        """Restores a notice; the tenant that needs the slices is determined anew."""
        if (old := grant.notice) is None:
            return
        tenant.warned[()] = self._notified[tenant] = old.said
        self._unconfirmed[tenant] = self._plans.unclaimed[tenant] = None
        self._ledger.give_notice(tenant, Notice(by=old.by, said=old.said, ends_at=old.ends_at))

    def validate(self, *, recovering: bool) -> None:
        """Checks the plans, the notices, and the index of victims."""
        self._plans.validate(self._ledger, recovering=recovering)
        for index in self._index.values():
            index.validate(self._ledger.tenants.values())
        assert all(one.notice is not None for one in (*self._notified, *self._unconfirmed))
        assert recovering or not self._damaged

    # ---- changes

    def _pool_changed(self, change: SlicesFreed | LineChanged) -> None:
        self._to_plan[change.pool] = None

    def _holding_changed(self, change: HoldingChanged) -> None:
        pool, tenant = change.pool, change.tenant
        self._index[pool].changed(tenant)
        self._to_plan[pool] = None
        if (plan := self._plans.of_victim.get(tenant)) is not None:
            self._damaged[plan.preemptor] = None

    def _shelter_changed(self, change: ShelterChanged) -> None:
        # A reservation that shelters a tenant in one pool shelters it in all.
        also = () if change.tenant is None else (change.tenant,)
        for tenant in dict.fromkeys((*change.pool.holders, *also)):
            for wanted in tenant.wants:
                self._index[wanted].changed(tenant)
                self._to_plan[wanted] = None

    def _notice_given(self, change: NoticeGiven) -> None:
        for pool in change.tenant.wants:
            self._index[pool].changed(change.tenant)

    def _notice_ended(self, change: NoticeEnded) -> None:
        victim = change.tenant
        self._plans.forget(victim)
        self._notified.pop(victim, None)
        self._unconfirmed.pop(victim, None)

    def _promise_ended(self, change: PromiseEnded) -> None:
        plan = self._plans.of.pop(change.tenant, None)
        self._damaged.pop(change.tenant, None)
        if plan is not None:
            plan.live = False
            for victim in list(plan.victims):
                self._spare(plan, victim)

    def _promised_slice_lost(self, change: PromisedSliceLost) -> None:
        if change.tenant in self._plans.of:
            self._damaged[change.tenant] = None

    # ---- plans

    def _plan_first(self, pool: Pool) -> Actions:
        while (entry := pool.first_open()) is not None:
            tenant = entry[-1]
            lowest = min(self._index[wanted].lowest for wanted in tenant.wants)
            if not self._plans.unclaimed and lowest >= tenant.request.priority:
                return  # no tenant of lower priority holds what it wants
            for wanted in tenant.wants:
                first = wanted.first_open()
                if first is None or first[-1] is not tenant:
                    return
            if startable(tenant) is not None:
                # (It was behind the one that has just been promised others: it is served next.)
                return
            chosen = choose_victims(tenant, (), self._plans.unclaimed, self._index)
            if chosen is None:
                return
            plan = Plan(preemptor=tenant, victims={}, ends_at=self._ledger.now)
            yield from self._keep_free(tenant)
            self._plans.of[tenant] = plan
            yield BeginPromise(tenant)
            yield from self._give_notice(plan, chosen)
            self._prune(plan)

    def _correct(self, plan: Plan) -> Actions:
        """Corrects a plan that has lost victims, their slices, or slices reserved for it."""
        tenant = plan.preemptor
        if (granted := startable(tenant)) is not None:
            yield Start(tenant, granted)
            return
        chosen = choose_victims(tenant, plan.victims, self._plans.unclaimed, self._index)
        if chosen is None:
            yield EndPromise(tenant)
            return
        yield from self._keep_free(tenant)
        yield from self._give_notice(plan, chosen)
        self._prune(plan)

    def _give_notice(self, plan: Plan, chosen: list[Tenant]) -> Actions:
        if not chosen:
            return
        who = plan.preemptor
        said = _label(who)
        for victim in chosen:
            known = victim.notice
            ends_at = self._ledger.now + self._grace_s if known is None else known.ends_at
            self._plans.claim(plan, victim)
            self._to_notify[victim] = None
            yield GiveNotice(victim, Notice(by=who.name, said=said, ends_at=ends_at, heir=who))

    def _keep_free(self, tenant: Tenant) -> Actions:
        """Reserves for a tenant the free slices that it could have now."""
        for pool, wanted in tenant.wants.items():
            missing = wanted - len(tenant.promised.get(pool, ()))
            for _ in range(min(missing, grantable_to(tenant, pool))):
                yield KeepFree(pool, tenant)

    def _prune(self, plan: Plan) -> None:
        """Spares superfluous victims; the plan is due when the others' notices have expired."""
        for victim in superfluous_victims(plan, {}):
            self._spare(plan, victim)
        before = plan.ends_at
        ends = [victim.notice.ends_at for victim in plan.victims if victim.notice is not None]
        plan.ends_at = max(ends, default=self._ledger.now)
        # No deadline covers an end that was moved earlier or has passed already.
        if (plan.ends_at < before or before <= self._ledger.now) and not plan.waits:
            self._await(plan)

    def _spare(self, plan: Plan, victim: Tenant) -> None:
        """Notes that a plan no longer needs a victim, whose notice may be withdrawn."""
        self._plans.spare(plan, victim)
        for pool in victim.wants:
            self._to_plan[pool] = None

    def _await(self, plan: Plan) -> None:
        self._deadlines.add(
            lambda: plan.ends_at if plan.live and not plan.waits else None,
            lambda: self._carry_out(plan),
        )

    def _carry_out(self, plan: Plan) -> Actions:
        tenant = plan.preemptor
        if tenant in self._damaged:
            # It lost a slice at this moment, and its victims may not suffice any more.
            del self._damaged[tenant]
            yield from self._correct(plan)
            if not plan.live or plan.ends_at > self._ledger.now:
                return
        if not tenant.connected:
            # It may be gone for good, and no victim must lose its work for that.
            plan.waits = True
            return
        reason = f"preempted by {_label(tenant)}"
        for victim in list(plan.victims):
            yield Preempt(victim, reason, tenant.name)
            yield QueueAgain(victim)
            self._preempted[victim] = None
        if (granted := startable(tenant)) is None:
            self._damaged[tenant] = None
        else:
            yield Start(tenant, granted)


def _label(preemptor: Tenant) -> str:
    priority = describe_priority(preemptor.request.priority)
    return f"{preemptor.label} of priority {priority}"
