"""Preemption during the grace: withdrawn notices, restarts, losses, and changed plans."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import Rm
from tests.scheduling.policies.scenes import GRACE_S, WAITS, held, noticed, state


def test_the_end_of_the_preemptor_withdraws_the_notice() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.said.clear()
    rm.release("vip")
    (told,) = rm.heard("low-1", m.NotifyPreempting)
    assert told.withdrawn
    assert told.grace_s == 0.0
    assert noticed(rm) == {}
    rm.after(2 * GRACE_S)
    assert rm.on("low-1") == ["slice-0"]


def test_a_freed_slice_withdraws_the_notice() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-2"]
    rm.said.clear()
    rm.release("low-1")
    assert rm.on("vip") == ["slice-0"]
    assert [one.withdrawn for one in rm.heard("low-2", m.NotifyPreempting)] == [True]
    assert rm.on("low-2") == ["slice-1"]


def test_a_freed_slice_spares_one_of_several_victims() -> None:
    rm = held(3)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["low-2", "low-3"]
    rm.release("low-1")
    assert list(noticed(rm)) == ["low-3"]
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0", "slice-2"]
    assert rm.on("low-2") == ["slice-1"]


def test_a_victim_that_lost_its_slice_is_replaced() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.after(10.0)
    rm.said.clear()
    rm.end_worker("slice-1")
    assert list(noticed(rm)) == ["low-1"]
    (told,) = rm.heard("low-1", m.NotifyPreempting)
    assert told.grace_s == GRACE_S, "it has not been told before"
    (withdrawn,) = rm.heard("low-2", m.NotifyPreempting)
    assert withdrawn.withdrawn
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0"]


def test_the_loss_of_a_reserved_slice_changes_or_ends_the_plan() -> None:
    rm = Rm(3)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-2"]
    rm.end_worker("slice-2")
    assert sorted(noticed(rm)) == ["low-1", "low-2"]
    rm.end_worker("slice-0")
    assert noticed(rm) == {}, "two would not come together any more"


def test_a_notice_is_repeated_to_a_reconnecting_victim() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("low-1")
    rm.after(10.0)
    rm.said.clear()
    rm.come_back("low-1", (0, *rm.placed("low-1")[0]))
    (told,) = rm.heard("low-1", m.NotifyPreempting)
    assert told.grace_s == GRACE_S - 10.0


# ---- restarts


@pytest.mark.parametrize("away", [0.0, 5.0])
def test_a_notice_outlives_a_restart_and_keeps_its_deadline(away: float) -> None:
    rm = held(1, recovering_s=20.0, tenant_ttl_s=60.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.after(10.0)
    where = rm.placed("low-1")[0]
    rm = rm.restarted()
    rm.after(away)
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    assert not rm.heard("low-1", m.NotifyPreempting)[0].withdrawn
    rm.come_back("vip")
    assert list(noticed(rm)) == ["low-1"]
    rm.after(GRACE_S - 10.0 - 1.0 - away)
    assert rm.on("vip") == ["slice-0"]


def test_a_preempted_tenant_stays_preempted_after_a_restart() -> None:
    rm = held(1, tenant_ttl_s=60.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.after(GRACE_S)
    where = rm.placed("vip")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("low-1")
    rm.come_back("vip", (0, *where))
    assert state(rm, "low-1") is TenantState.PREEMPTED
    rm.after(1000.0)
    assert rm.heard("low-1", m.RefuseTenant) == []
    rm.release("vip")
    assert rm.on("low-1") == ["slice-0"]


def test_a_restart_without_the_preemptor_withdraws_the_notice() -> None:
    rm = held(1, tenant_ttl_s=15.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    where = rm.placed("low-1")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    rm.after(20.0)
    assert noticed(rm) == {}
    assert rm.heard("low-1", m.NotifyPreempting)[-1].withdrawn
    assert rm.on("low-1") == ["slice-0"]


def test_a_reconnecting_victim_receives_the_withdrawal() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("low-1")
    rm.release("vip")
    rm.said.clear()
    where = rm.placed("low-1")[0]
    rm.come_back("low-1", (0, *where))
    (told,) = rm.heard("low-1", m.NotifyPreempting)
    assert (told.withdrawn, told.by) == (True, "vip@laptop of priority 1")
    rm.said.clear()
    rm.come_back("low-1", (0, *where))
    assert rm.heard("low-1", m.NotifyPreempting) == [], "it is told once"


def test_a_victim_without_the_notice_gets_no_withdrawal() -> None:
    rm = held(1)
    rm.cut("low-1")
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.release("vip")
    rm.come_back("low-1", (0, *rm.placed("low-1")[0]))
    assert rm.heard("low-1", m.NotifyPreempting) == []


def test_a_notice_that_may_be_unknown_to_its_victim_leaves_some_time() -> None:
    rm = held(1, tenant_ttl_s=60.0)
    where = rm.placed("low-1")[0]
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.now += GRACE_S + 10.0  # the manager is away
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    assert [one.grace_s for one in rm.heard("low-1", m.NotifyPreempting)] == [5.0]
    rm.come_back("vip")
    rm.after(4.0)
    assert rm.on("low-1") == ["slice-0"]
    rm.after(1.0)
    assert rm.on("vip") == ["slice-0"]


def test_a_disconnected_preemptor_preempts_only_after_its_return() -> None:
    rm = held(1, preemption_grace_s=3.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("vip")
    rm.after(4.0)
    assert rm.on("low-1") == ["slice-0"]
    rm.come_back("vip")
    rm.after(0.0)
    assert rm.on("vip") == ["slice-0"]


def test_a_preemptor_that_does_not_return_does_not_preempt() -> None:
    rm = held(1, preemption_grace_s=3.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("vip")
    rm.after(60.0)
    assert rm.on("low-1") == ["slice-0"]
    assert [one.withdrawn for one in rm.heard("low-1", m.NotifyPreempting)] == [False, True]


def test_a_plan_is_due_when_its_remaining_victims_had_their_grace() -> None:
    rm = Rm(4)
    rm.ask("keep", 1, priority=5)
    for number in (1, 2, 3):
        rm.ask(f"low-{number}", 1)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["low-2", "low-3"]
    rm.after(20.0)
    rm.end_worker("slice-3")
    assert sorted(noticed(rm)) == ["low-1", "low-2"], "low-1 has 30 s from now"
    rm.join("slice-3", life="2")
    rm.release("keep")
    assert list(noticed(rm)) == ["low-2"], "low-1 is spared, and low-2 was told 20 s ago"
    rm.after(GRACE_S - 20.0)
    assert len(rm.placed("vip")) == 2


def test_a_due_plan_that_loses_a_victim_is_planned_again() -> None:
    rm = Rm(3, hung_after_s=10.0)
    rm.ask("v2", 1)
    rm.ask("v1", 2)
    rm.ask("vip", 2, priority=2, queue=math.inf)
    began = rm.now
    rm.after(19.9)
    hung = rm.on("v1")[0]
    while rm.now < began + 29.5:
        rm.now += 0.5
        rm.beat(hung)
    rm.now = began + 31.0  # a late tick: its other slice hangs, and the plan is due
    rm.beat(hung)
    rm.do(m.Tick())
    rm.after(2 * 31.0)
    assert len(rm.on("vip")) == 2


def test_a_victim_moved_in_the_same_tick_does_not_get_its_lost_placement() -> None:
    rm = Rm(4, preemption_grace_s=0.0)
    rm.ask("low", 2)
    rm.do(m.SliceDrained(slice_id="slice-0"))
    rm.ask("vip", 2, priority=1)
    rm.said.clear()
    rm.after(0.0)
    assert len(rm.placed("vip")) == 2
    assert state(rm, "low") is TenantState.PREEMPTED
    assert rm.announced("slice.placed", "tenant.preempted") == [
        "slice.placed",
        "tenant.preempted",
        "slice.placed",
        "slice.placed",
    ], "the move and the preemption are one step"
    assert rm.heard("low", m.NotifyPlaced) == []
    unplaced = [(one.virtual_index, one.slice_id) for one in rm.heard("low", m.NotifyUnplaced)]
    assert unplaced == [(0, "slice-0"), (1, "slice-1")]


def test_a_preemptor_that_loses_a_slice_in_the_same_tick_runs_once_it_is_whole() -> None:
    rm = held(2, preemption_grace_s=GRACE_S, hung_after_s=GRACE_S + 1.0)
    rm.ask("vip", 2, priority=1)
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat("slice-0")
    rm.do(m.Tick())
    assert rm.on("vip") == ["slice-1"]
    assert [one.slice_id for one in rm.heard("vip", m.NotifyPlaced)] == ["slice-1"]
    assert rm.heard("vip", m.NotifyUnplaced) == []
    assert rm.heard("vip", m.NotifyRunning) == []
    rm.join("slice-0", life="2")
    assert [one.slice_id for one in rm.heard("vip", m.NotifyPlaced)] == ["slice-1", "slice-0"]
    assert [one.placed for one in rm.heard("vip", m.NotifyRunning)] == [2]


def test_an_elastic_preemptor_that_loses_a_slice_in_the_same_tick_runs_on_the_rest() -> None:
    rm = Rm(2, preemption_grace_s=GRACE_S, hung_after_s=GRACE_S + 1.0)
    rm.ask("low", 2)
    rm.ask("vip", 2, elastic=1, priority=1)
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat("slice-0")
    rm.do(m.Tick())
    assert rm.on("vip") == ["slice-1"]
    assert [one.slice_id for one in rm.heard("vip", m.NotifyPlaced)] == ["slice-1"]
    assert [(one.placed, one.wanted) for one in rm.heard("vip", m.NotifyRunning)] == [(1, 2)]


def test_a_victim_that_hangs_at_the_end_of_its_notice_is_not_preempted() -> None:
    rm = Rm(2, preemption_grace_s=GRACE_S, hung_after_s=GRACE_S)
    rm.ask("low", 1)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert set(noticed(rm)) == {"low"}
    [held_by_low] = rm.on("low")
    [free] = {"slice-0", "slice-1"} - {held_by_low}
    rm.said.clear()
    rm.now += GRACE_S
    rm.beat(held_by_low)  # all but this one
    rm.do(m.Tick())
    assert noticed(rm) == {}
    assert rm.on("low") == [free]
    assert [one.withdrawn for one in rm.heard("low", m.NotifyPreempting)] == [True]
    assert rm.announced("tenant.preempted") == []
    rm.join(held_by_low, life="2")
    assert set(noticed(rm)) == {"low"}, "now it would suffice"
