"""Plans of preemption: which tenants are preempted so that a waiting tenant can start."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.states import SliceState
from shared_pathways_service.scheduling.policies.preemption.victims import attainable, yield_of

__all__ = ["Plan", "Plans", "superfluous_victims"]


@dataclasses.dataclass(eq=False, slots=True)
class Plan:
    """Tenants that will be preempted so that a waiting tenant can start.

    Attributes:
      preemptor: The waiting tenant.
      victims: Running tenants that are under notice for it.
      ends_at: When they are preempted: no earlier than each was notified of.
      waits: Whether it was due, and waits for the preemptor's proxy, which is not connected.
      live: Whether it will still be carried out.
    """

    preemptor: Tenant
    victims: dict[Tenant, None]
    ends_at: float
    waits: bool = False
    live: bool = True


class Plans:
    """All plans, and the tenants under notice.

    Attributes:
      of: The plan of each waiting tenant that has a promise.
      of_victim: The plan of each tenant that is under notice for one.
      unclaimed: Tenants that are under notice for no plan.
    """

    def __init__(self) -> None:
        self.of: dict[Tenant, Plan] = {}
        self.of_victim: dict[Tenant, Plan] = {}
        self.unclaimed: dict[Tenant, None] = {}

    def claim(self, plan: Plan, victim: Tenant) -> None:
        """Adds a victim to a plan."""
        self.unclaimed.pop(victim, None)
        self.of_victim[victim] = plan
        plan.victims[victim] = None

    def spare(self, plan: Plan, victim: Tenant) -> None:
        """Removes a victim from a plan; it is still under notice."""
        del plan.victims[victim]
        del self.of_victim[victim]
        self.unclaimed[victim] = None

    def forget(self, victim: Tenant) -> None:
        """Removes a tenant that is no longer under notice."""
        plan = self.of_victim.pop(victim, None)
        if plan is not None:
            del plan.victims[victim]
        self.unclaimed.pop(victim, None)

    def validate(self, ledger: Ledger, *, recovering: bool) -> None:
        """Checks that plans let waiting tenants start, with victims of lower priority."""
        tenants = ledger.tenants.values()
        assert self.of.keys() == {tenant for tenant in tenants if tenant.has_promise}
        under_notice = {tenant for tenant in tenants if tenant.notice is not None}
        assert under_notice == self.unclaimed.keys() | self.of_victim.keys()
        assert not self.unclaimed.keys() & self.of_victim.keys()
        assert all(victim in plan.victims for victim, plan in self.of_victim.items())
        assert recovering or not self.unclaimed, "under notice for no plan"
        for tenant, plan in self.of.items():
            assert plan.preemptor is tenant
            assert plan.live
            self._validate_victims(plan)

    def _validate_victims(self, plan: Plan) -> None:
        tenant, name = plan.preemptor, plan.preemptor.name
        could = {pool: len(tenant.promised.get(pool, ())) for pool in tenant.wants}
        for victim in plan.victims:
            assert victim.request.priority < tenant.request.priority, (
                f"{name} would preempt {victim.name}"
            )
            assert victim.notice is not None
            assert self.of_victim[victim] is plan
            assert victim.notice.heir is tenant
            assert victim.notice.ends_at <= plan.ends_at, f"{victim.name}: before its notice ends"
            for held in victim.placed.values():
                if held.pool in could:
                    could[held.pool] += held.state is SliceState.READY
        gets = sum(min(count, tenant.wants[pool]) for pool, count in could.items())
        assert gets >= tenant.gang, f"{name}: would not start by its plan"


def superfluous_victims(plan: Plan, more: Mapping[Pool, int]) -> list[Tenant]:
    """Returns the victims that a plan could do without if it had `more` free slices."""
    tenant = plan.preemptor
    wants = attainable(tenant)
    has = {pool: len(tenant.promised.get(pool, ())) + more.get(pool, 0) for pool in wants}
    least: float = math.inf
    for victim in plan.victims:
        yields = 0
        for pool in wants:
            count = yield_of(pool, victim)
            has[pool] += count
            yields += count
        least = min(least, yields)
    if sum(has.values()) - least < tenant.gang:
        return []  # most often: every victim is needed
    # The victim that would be disturbed most is spared first.
    spared: list[Tenant] = []
    for victim in sorted(plan.victims, key=lambda one: (-one.request.priority, one.order)):
        without = {pool: count - yield_of(pool, victim) for pool, count in has.items()}
        if sum(min(count, wants[pool]) for pool, count in without.items()) >= tenant.gang:
            spared.append(victim)
            has = without
    return spared
