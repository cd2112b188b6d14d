"""The core runs without any one of its policies, and without all of them."""

from __future__ import annotations

import math
import random

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import Limits
from shared_pathways_service.scheduling.book.states import TenantState
from shared_pathways_service.scheduling.core import POLICIES
from shared_pathways_service.scheduling.policies.backfill import Backfill
from shared_pathways_service.scheduling.policies.idleness import Idleness
from shared_pathways_service.scheduling.policies.policy import MakePolicy
from shared_pathways_service.scheduling.policies.preemption.preemption import Preemption
from shared_pathways_service.scheduling.policies.queue_refusals import Refusals
from shared_pathways_service.scheduling.policies.reservations import Reservations
from shared_pathways_service.scheduling.policies.team_limits import TeamLimits
from tests.scheduling.harness import OTHER, SMALL, Rm


def without(*left_out: MakePolicy) -> tuple[MakePolicy, ...]:
    return tuple(policy for policy in POLICIES if policy not in left_out)


def step(rm: Rm, chance: random.Random, number: int) -> None:
    """Has something happen that concerns a policy; the harness checks the state after it."""
    tenant = chance.choice(rm.tenants or [""])
    slice_id = chance.choice([one.id for one in rm.core.status(rm.now).slices])
    match chance.randrange(10):
        case 0 | 1 | 2:
            wants = (SMALL,) * chance.randint(1, 3) + (OTHER,) * chance.randint(0, 1)
            rm.ask(
                f"t{number}",
                wants,
                elastic=chance.choice([0, 0, len(wants) - 1]),
                priority=chance.choice([0, 0, 1, 5]),
                queue=chance.choice([None, 8.0, math.inf, math.inf]),
                team=chance.choice(["", "red"]),
                lifetime=chance.choice([None, None, 10.0]),
            )
            if f"t{number}" in rm.tenants:
                rm.tell(f"t{number}", 0)
        case 3 if tenant:
            rm.release(tenant)
        case 4 if tenant:
            rm.tell(tenant, chance.randint(0, 3))
        case 5 if tenant:
            rm.cut(tenant)
            rm.after(chance.choice([1.0, 60.0]))
        case 6:
            rm.end_worker(slice_id, life="1")
            kind = OTHER if slice_id.startswith("tpuv5e") else SMALL
            rm.join(slice_id, kind=kind)
        case 7:
            cordoned, drained = (
                m.SliceCordoned(slice_id=slice_id),
                m.SliceDrained(slice_id=slice_id),
            )
            uncordoned = m.SliceUncordoned(slice_id=slice_id)
            rm.do(chance.choice((cordoned, drained, uncordoned)))
        case 8 if not rm.reservations and Reservations in rm.policies:
            rm.reserve(1, team="red", starts_in=chance.choice([0.0, 5.0]), ends_in=20.0)
        case _:
            rm.after(chance.choice([0.5, 5.0, 12.0]))


@pytest.mark.parametrize(
    "policies",
    [*(without(policy) for policy in POLICIES), *((policy,) for policy in POLICIES), ()],
    ids=lambda policies: "+".join(policy.__name__ for policy in policies) or "none",
)
def test_the_core_runs_with_some_of_its_policies(policies: tuple[MakePolicy, ...]) -> None:
    chance = random.Random(1)
    rm = Rm(
        {SMALL: 4, OTHER: 2},
        policies=policies,
        spares=1,
        preemption_grace_s=3.0,
        idle_release_s=20.0,
        idle_warning_s=5.0,
        limits=Limits(team_tenants=3),
    )
    for number in range(250):
        step(rm, chance, number)
        if number % 100 == 99:
            rm = rm.restarted()
            for index in range(6):
                kind = SMALL if index < 4 else OTHER
                rm.join(f"slice-{index}" if index < 4 else f"tpuv5e-2x2-{index - 4}", kind=kind)
            rm.after(60.0)
    for tenant in rm.tenants:
        rm.release(tenant)
    assert rm.tenants == []


def test_without_preemption_a_tenant_of_higher_priority_waits() -> None:
    rm = Rm(1, policies=without(Preemption))
    rm.ask("low")
    rm.ask("high", priority=9, queue=math.inf)
    rm.after(3600.0)
    assert rm.tenant("low").state is TenantState.RUNNING
    assert rm.queue == ["high"]


def test_without_backfill_a_short_tenant_waits_behind_the_head() -> None:
    rm = Rm(2, policies=without(Backfill))
    rm.ask("holder", lifetime=100.0)
    rm.ask("head", 2, queue=math.inf)
    rm.ask("short", queue=math.inf, lifetime=10.0)
    assert rm.queue == ["head", "short"]


def test_without_idleness_idle_tenants_keep_their_slices() -> None:
    rm = Rm(1, policies=without(Idleness), idle_release_s=10.0)
    rm.ask("idle")
    rm.tell("idle", 0)
    rm.after(3600.0)
    assert rm.on("idle") == ["slice-0"]


def test_without_refusals_and_limits_tenants_wait_instead() -> None:
    rm = Rm(1, policies=without(Refusals, TeamLimits), limits=Limits(team_tenants=1))
    rm.ask("first", team="red")
    rm.ask("second", team="red")
    rm.after(3600.0)
    assert rm.queue == ["second"]
