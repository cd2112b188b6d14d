"""A restart of the resource manager without its state: which claims of tenants it accepts."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.recovery_scenes import all_join, busy, waits_again

# ---- without the disk


def test_claims_are_accepted() -> None:
    rm = busy().restarted(state_lost=True)
    assert rm.state == "recovering"
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    all_join(rm)
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.state == "recovering", "nobody knows who else there is"
    rm.after(21.0)
    assert rm.state == "serving"
    assert rm.placed("ada") == {0: ("slice-0", 1), 1: ("slice-1", 2)}
    assert rm.placed("bob") == {0: ("slice-2", 3)}
    assert not rm.heard("ada", m.NotifyUnplaced)
    rm.release("bob")
    rm.ask("new", 1)
    assert rm.placed("new")[0][1] > 3


def test_the_later_of_two_claims_wins() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    fresh = rm.restarted(state_lost=True)
    fresh.come_back("ada", (0, "slice-0", 1))
    fresh.come_back("bob", (0, "slice-0", 2))
    (lost,) = fresh.heard("ada", m.NotifyUnplaced)
    assert (lost.slice_id, lost.generation) == ("slice-0", 1)
    assert fresh.placed("bob") == {0: ("slice-0", 2)}
    asked = fresh.asked["ada"]
    fresh.asked["eve"] = dataclasses.replace(
        asked, request=dataclasses.replace(asked.request, name="eve"), incarnation="eve/1"
    )
    fresh.come_back("eve", (0, "slice-0", 1))
    assert fresh.refusal("eve").kind is m.RefusalKind.LOST


def test_impossible_claims_are_refused() -> None:
    rm = Rm({SMALL: 1, OTHER: 1}).restarted(state_lost=True)
    rm.join("slice-0")
    rm.join("tpuv5e-2x2-0", kind=OTHER)
    for index, claim in enumerate(
        (
            (0, "slice-0", 0),
            (0, "slice-0", 2**63),
            (7, "slice-0", 1),
            (0, "tpuv5e-2x2-0", 1),
        )
    ):
        tenant = f"t{index}"
        rm.asked[tenant] = m.TenantAsked(
            request=TenantRequest(name=tenant, virtual_slices=(SMALL,)), incarnation=tenant
        )
        rm.come_back(tenant, claim)
        assert rm.refusal(tenant).kind is m.RefusalKind.LOST, claim


def test_a_gang_that_lost_a_slice_keeps_the_others() -> None:
    rm = Rm(3)
    rm.ask("ada", 3)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.end_worker("slice-1")
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2), (2, "slice-2", 3))
    assert [one.slice_id for one in fresh.heard("ada", m.NotifyUnplaced)] == ["slice-1"]
    assert fresh.on("ada") == ["slice-0", "slice-2"]
    assert not fresh.heard("ada", m.NotifyRunning), "it is not whole"
    fresh.after(21.0)
    fresh.join("slice-1", life="2")
    assert len(fresh.placed("ada")) == 3
    assert len(fresh.heard("ada", m.NotifyRunning)) == 1


def test_a_never_placed_slice_does_not_take_a_spare() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 3, elastic=1)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-0", "slice-1"]
    fresh.end_worker("slice-0")
    assert fresh.on("ada") == ["slice-2", "slice-1"]


def test_repeated_claims_of_one_slice_count_once() -> None:
    rm = Rm(3)
    rm.ask("ada", 2)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-0", 2))
    assert fresh.placed("ada") == {1: ("slice-0", 2)}
    (lost,) = fresh.heard("ada", m.NotifyUnplaced)
    assert (lost.virtual_index, lost.generation) == (0, 1)
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-1", "slice-0"]
    fresh.release("ada")
    fresh.ask("bob", 3)
    assert len(fresh.placed("bob")) == 3


def test_a_slice_that_failed_before_its_claim_is_lost() -> None:
    rm = busy().restarted(state_lost=True)
    all_join(rm)
    rm.end_worker("slice-0")
    rm.join("slice-0", life="2")
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert [one.slice_id for one in rm.heard("ada", m.NotifyUnplaced)] == ["slice-0"]
    assert rm.on("ada") == ["slice-1"]
    rm.after(21.0)
    assert rm.placed("ada")[0][1] > 3, "it is placed again"


def test_a_new_worker_has_lost_its_slice() -> None:
    for claim_first in (False, True):
        rm = busy().restarted(state_lost=True)
        if not claim_first:
            rm.join("slice-0", life="2")
        rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
        if claim_first:
            rm.join("slice-0", life="2")
        assert [one.slice_id for one in rm.heard("ada", m.NotifyUnplaced)] == ["slice-0"]
        assert rm.on("ada") == ["slice-1"]


def test_a_worker_younger_than_the_placement_has_lost_its_slice() -> None:
    for claim_first in (False, True):
        between = busy().restarted()
        between.join("slice-0", life="2")
        rm = between.restarted(state_lost=True)
        if not claim_first:
            rm.join("slice-0", life="2")
        rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
        if claim_first:
            rm.join("slice-0", life="2")
        assert [one.slice_id for one in rm.heard("ada", m.NotifyUnplaced)] == ["slice-0"]
        assert rm.on("ada") == ["slice-1"]


def test_a_tenant_that_lost_all_slices_is_placed_again() -> None:
    rm = busy().restarted(state_lost=True)
    rm.join("slice-2", life="2")
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.placed("bob") == {}
    assert rm.tenant("bob").state is TenantState.RUNNING
    rm.after(21.0)
    assert rm.on("bob") == ["slice-2"]
    assert rm.placed("bob")[0][1] > 3


def test_a_tenant_without_any_slice_left_still_runs() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.end_worker("slice-0")
    fresh = rm.restarted(state_lost=True)
    fresh.ask("new", 1, queue=math.inf)
    fresh.asked["ada"] = dataclasses.replace(fresh.asked["ada"], running=True)
    fresh.come_back("ada")
    fresh.join("slice-0", life="2")
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-0"], "it goes before those that never ran"
    assert fresh.queue == ["new"]


def test_a_late_tenant_keeps_its_slices_unless_reassigned() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    fresh = rm.restarted(state_lost=True)
    for index in range(2):
        fresh.join(f"slice-{index}")
    fresh.after(21.0)
    fresh.ask("new", 1)
    assert fresh.on("new") == ["slice-0"]
    fresh.come_back("ada", (0, "slice-0", 1))
    assert fresh.refusal("ada").kind is m.RefusalKind.LOST
    fresh.come_back("bob", (0, "slice-1", 2))
    assert fresh.placed("bob") == {0: ("slice-1", 2)}
    fresh.release("bob")
    fresh.said.clear()
    fresh.do(dataclasses.replace(fresh.asked["bob"], incarnation="bob/2"))
    assert fresh.placed("bob")[0][1] > 3


def test_generations_stay_above_those_a_proxy_knows() -> None:
    rm = Rm(1, ready=False, state_lost=True)
    ahead = int((rm.now + 3600.0) * 1000)  # of a manager whose clock was an hour ahead
    for tenant, knows in (("ada", ahead), ("liar", 2**63)):
        rm.asked[tenant] = m.TenantAsked(
            request=TenantRequest(
                name=tenant,
                virtual_slices=(SMALL,),
            ),
            incarnation=tenant,
            running=True,
            last_generation=knows,
        )
        rm.come_back(tenant)
    rm.join("slice-0")
    rm.after(21.0)
    assert rm.placed("ada") == {0: ("slice-0", ahead + 1)}


@pytest.mark.parametrize("queue", [None, 5.0])
@pytest.mark.parametrize("late", [False, True])
def test_a_preempted_tenant_waits_without_a_timeout(queue: float | None, late: bool) -> None:
    rm = Rm(1)
    rm.ask("low", 1)
    rm.ask("vip", 1, priority=1, queue=math.inf)
    rm.after(30.0)
    where = rm.placed("vip")[0]
    fresh = rm.restarted(state_lost=True)
    fresh.join("slice-0")
    fresh.come_back("vip", (0, *where))
    if late:
        fresh.after(21.0)
        assert fresh.state == "serving"
    waits_again(fresh, "low", queue=queue)
    fresh.after(60.0)
    assert fresh.queue == ["low"]
    again = fresh.restarted(state_lost=False)
    again.join("slice-0")
    again.come_back("vip", (0, *where))
    again.come_back("low")
    again.after(60.0)
    assert again.queue == ["low"]
    again.release("vip")
    assert again.on("low") == ["slice-0"]


def test_a_too_late_preempted_tenant_queues_like_any_other() -> None:
    rm = Rm(1, ready=False, state_lost=True, recovering_s=20.0)
    rm.welcomed["slice-0/0/1"] = 1
    rm.join("slice-0")
    rm.after(21.0 + rm.config.tenant_ttl_s)
    rm.ask("new", 1)
    waits_again(rm, "low")
    assert rm.refusal("low").kind is m.RefusalKind.SLICES_TAKEN
