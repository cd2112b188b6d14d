"""Preemption: who is chosen, what is told, and everything that may happen during the grace."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import OTHER, SMALL, Rm

GRACE_S = 30.0
WAITS = math.inf


def held(slices: int = 2, **config: Any) -> Rm:
    """A service whose slices low-1, low-2, … hold, one each."""
    rm = Rm(slices, **config)
    for number in range(1, slices + 1):
        rm.ask(f"low-{number}", 1)
    rm.said.clear()
    return rm


def state(rm: Rm, tenant: str) -> TenantState:
    return rm.tenant(tenant).state


def noticed(rm: Rm) -> dict[str, str]:
    """Returns who is under notice, and by whom."""
    return {t.name: t.preempting_by for t in rm.core.status(rm.now).tenants if t.preempting_by}


def test_a_higher_priority_gets_the_slices_of_a_lower_one_after_a_notice() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=2_000_000, queue=WAITS)
    (told,) = rm.heard("low-1", m.TellPreempting)
    assert (told.grace_s, told.withdrawn, told.indices) == (GRACE_S, False, ())
    assert told.by == "vip@laptop of priority high-priority-job (2000000)"
    assert rm.on("low-1") == ["slice-0"], "the grace has just begun"
    assert rm.tenant("low-1").preempting_s == GRACE_S
    before = rm.placed("low-1")[0][1]
    rm.said.clear()

    rm.after(GRACE_S)
    (lost,) = rm.heard("low-1", m.TellUnplaced)
    assert lost.reason == "preempted by vip@laptop of priority high-priority-job (2000000)"
    assert lost.generation == before
    assert rm.on("vip") == ["slice-0"]
    assert state(rm, "low-1") is TenantState.PREEMPTED
    assert rm.queue == ["low-1"]
    assert rm.heard("low-1", m.TellQueued)[-1].position == 1
    assert rm.announced("tenant.preempted") == ["tenant.preempted"]

    rm.said.clear()
    rm.release("vip")
    assert rm.placed("low-1")[0][1] > before, "placed anew, on a new generation"
    assert [one.placed for one in rm.heard("low-1", m.TellRunning)] == [1]
    assert state(rm, "low-1") is TenantState.RUNNING


def test_nobody_preempts_its_equal_or_better() -> None:
    rm = held(2)
    rm.ask("equal", 1, queue=WAITS)
    assert noticed(rm) == {}
    rm.ask("less", 1, priority=-1, queue=WAITS)
    assert noticed(rm) == {}


def test_it_is_not_done_where_it_would_not_let_the_higher_one_start() -> None:
    rm = Rm(3)
    rm.ask("low", 1)
    rm.ask("high", 2, priority=5)
    rm.ask("vip", 2, priority=5, queue=WAITS)
    assert noticed(rm) == {}, "low has one slice, and two are wanted"


def test_the_lowest_then_the_youngest_goes_and_no_more_than_it_takes() -> None:
    rm = Rm(5)
    for tenant, priority in (("a", 3), ("b", 1), ("c", 1), ("d", 2), ("e", 3)):
        rm.ask(tenant, 1, priority=priority)
    rm.ask("vip", 1, priority=9, queue=WAITS)
    assert list(noticed(rm)) == ["c"]
    rm.ask("next", 2, priority=9, queue=WAITS)
    assert sorted(noticed(rm)) == ["b", "c", "d"], "nobody is under notice for two"


def test_who_turns_out_superfluous_is_spared() -> None:
    rm = Rm(4)
    rm.ask("large", 3)
    rm.ask("small", 1)
    rm.ask("vip", 3, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["large"], "with it, small need not go"


def test_a_free_slice_that_the_plan_counts_on_is_kept_for_it() -> None:
    rm = Rm(2)
    rm.ask("low", 1)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low"]
    assert rm.slice("slice-1").kept_for == "vip"
    rm.ask("now", 1)
    assert rm.refusal("now").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("higher", 1, priority=9, queue=WAITS)
    assert rm.on("higher") == [], "a promise stands"
    rm.after(GRACE_S)
    assert len(rm.placed("vip")) == 2


def test_with_no_grace_it_is_done_at_once() -> None:
    rm = held(1, preemption_grace_s=0.0)
    rm.ask("vip", 1, priority=1)
    assert rm.core.next_deadline() == rm.now
    rm.after(0.0)
    assert rm.on("vip") == ["slice-0"]
    assert [one.grace_s for one in rm.heard("low-1", m.TellPreempting)] == [0.0]
    assert state(rm, "low-1") is TenantState.PREEMPTED


def test_who_does_not_queue_waits_for_the_grace_alone() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1)
    assert rm.heard("vip", m.RefuseTenant) == []
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0"]


def test_the_preempted_one_waits_however_short_its_queue_timeout_was() -> None:
    rm = Rm(1)
    rm.ask("never", 1)
    rm.ask("vip", 1, priority=1)
    rm.after(GRACE_S)
    rm.release("vip")
    rm.ask("other", 1, queue=5.0)
    rm.release("never")
    rm.ask("vip", 1, priority=1, life="2")
    rm.after(GRACE_S + 1000.0)
    assert state(rm, "other") is TenantState.PREEMPTED
    assert rm.heard("other", m.RefuseTenant) == []


def test_a_preempted_gang_comes_back_at_its_old_place() -> None:
    rm = held(2)
    rm.ask("later", 1, queue=WAITS)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    rm.after(GRACE_S)
    assert rm.queue == ["low-1", "low-2", "later"]
    rm.release("vip")
    assert (rm.on("low-1"), rm.on("low-2")) == (["slice-0"], ["slice-1"])
    assert rm.queue == ["later"]


# ---- during the grace


def test_a_victim_that_lets_go_early_makes_room_at_once() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.release("low-2")
    assert rm.on("vip") == ["slice-1"]
    assert noticed(rm) == {}


def test_what_one_of_several_victims_leaves_is_kept_until_all_is_there() -> None:
    rm = held(2)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["low-1", "low-2"]
    rm.release("low-1")
    assert rm.slice("slice-0").kept_for == "vip"
    rm.ask("more", 1, priority=7, queue=WAITS)
    assert rm.on("more") == []
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0", "slice-1"]


def test_when_the_preemptor_goes_the_notice_is_withdrawn() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.said.clear()
    rm.release("vip")
    (told,) = rm.heard("low-1", m.TellPreempting)
    assert told.withdrawn
    assert told.grace_s == 0.0
    assert noticed(rm) == {}
    rm.after(2 * GRACE_S)
    assert rm.on("low-1") == ["slice-0"]


def test_when_a_slice_becomes_free_the_notice_is_withdrawn() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-2"]
    rm.said.clear()
    rm.release("low-1")
    assert rm.on("vip") == ["slice-0"]
    assert [one.withdrawn for one in rm.heard("low-2", m.TellPreempting)] == [True]
    assert rm.on("low-2") == ["slice-1"]


def test_a_slice_that_becomes_free_spares_one_of_several() -> None:
    rm = held(3)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["low-2", "low-3"]
    rm.release("low-1")
    assert list(noticed(rm)) == ["low-3"]
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0", "slice-2"]
    assert rm.on("low-2") == ["slice-1"]


def test_when_the_victims_slice_is_lost_another_one_goes() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.after(10.0)
    rm.said.clear()
    rm.end_worker("slice-1")
    assert list(noticed(rm)) == ["low-1"]
    (told,) = rm.heard("low-1", m.TellPreempting)
    assert told.grace_s == GRACE_S, "it has not been told before"
    (withdrawn,) = rm.heard("low-2", m.TellPreempting)
    assert withdrawn.withdrawn
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0"]


def test_when_a_kept_slice_is_lost_the_plan_is_mended_or_given_up() -> None:
    rm = Rm(3)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-2"]
    rm.end_worker("slice-2")
    assert sorted(noticed(rm)) == ["low-1", "low-2"]
    rm.end_worker("slice-0")
    assert noticed(rm) == {}, "two would not come together any more"


def test_who_comes_with_a_higher_priority_plans_around_what_is_promised() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.ask("king", 1, priority=2, queue=WAITS)
    assert {name: by.split("@")[0] for name, by in noticed(rm).items()} == {
        "low-2": "vip",
        "low-1": "king",
    }
    rm.after(GRACE_S)
    assert (rm.on("vip"), rm.on("king")) == (["slice-1"], ["slice-0"])


def test_one_that_was_preempted_may_preempt_and_be_preempted_again() -> None:
    rm = Rm(1)
    rm.ask("low", 1)
    rm.ask("mid", 1, priority=1, queue=WAITS)
    rm.after(GRACE_S)
    rm.ask("high", 1, priority=2, queue=WAITS)
    rm.after(GRACE_S)
    assert rm.on("high") == ["slice-0"]
    assert rm.queue == ["mid", "low"]
    rm.release("high")
    assert rm.on("mid") == ["slice-0"]


def test_an_elastic_one_is_content_with_what_it_needs() -> None:
    rm = held(3)
    rm.ask("vip", 3, elastic=2, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-3"]
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-2"]


def test_slices_of_other_types_come_free_with_a_victim() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("low", (SMALL, OTHER))
    rm.ask("vip", (SMALL,), priority=1, queue=WAITS)
    rm.ask("other", (OTHER,), queue=WAITS)
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0"]
    assert rm.on("other") == [], "low came first, and wants it too"
    assert rm.queue == ["low", "other"]


def test_a_gang_of_two_types_preempts_in_both() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("a", (SMALL,))
    rm.ask("b", (OTHER,))
    rm.ask("vip", (SMALL, OTHER), priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["a", "b"]
    rm.after(GRACE_S)
    assert len(rm.placed("vip")) == 2


def test_a_victim_that_comes_back_hears_of_its_notice_again() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("low-1")
    rm.after(10.0)
    rm.said.clear()
    rm.come_back("low-1", (0, *rm.placed("low-1")[0]))
    (told,) = rm.heard("low-1", m.TellPreempting)
    assert told.grace_s == GRACE_S - 10.0


# ---- restarts


@pytest.mark.parametrize("away", [0.0, 5.0])
def test_a_notice_goes_on_after_a_restart_and_takes_no_longer(away: float) -> None:
    rm = held(1, recovering_s=20.0, tenant_ttl_s=60.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.after(10.0)
    where = rm.placed("low-1")[0]
    rm = rm.restarted()
    rm.after(away)
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    assert not rm.heard("low-1", m.TellPreempting)[0].withdrawn
    rm.come_back("vip")
    assert list(noticed(rm)) == ["low-1"]
    rm.after(GRACE_S - 10.0 - 1.0 - away)
    assert rm.on("vip") == ["slice-0"]


def test_a_preempted_tenant_is_one_after_a_restart_too() -> None:
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


def test_a_notice_is_withdrawn_when_the_preemptor_does_not_outlive_the_restart() -> None:
    rm = held(1, tenant_ttl_s=15.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    where = rm.placed("low-1")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    rm.after(20.0)
    assert noticed(rm) == {}
    assert rm.heard("low-1", m.TellPreempting)[-1].withdrawn
    assert rm.on("low-1") == ["slice-0"]


def test_who_stood_behind_one_that_plans_is_placed_where_it_can_be() -> None:
    rm = Rm({SMALL: 2, OTHER: 3}, ready=False)
    rm.join("slice-0")
    rm.ask("low", 1)
    rm.join("o-0", kind=OTHER)
    rm.join("o-1", kind=OTHER)
    rm.ask("vip", (SMALL, SMALL, OTHER), priority=1, queue=WAITS)
    rm.ask("elastic", (OTHER, OTHER), elastic=1, priority=1)
    assert len(rm.placed("elastic")) == 1
    rm.join("o-2", kind=OTHER)
    rm.join("slice-1")
    assert list(noticed(rm)) == ["low"], "with both slices vip can start"
    assert len(rm.placed("elastic")) == 2, "its other slice waits behind vip no more"


def test_who_was_away_when_a_notice_was_withdrawn_hears_of_it_when_it_is_back() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("low-1")
    rm.release("vip")
    rm.said.clear()
    where = rm.placed("low-1")[0]
    rm.come_back("low-1", (0, *where))
    (told,) = rm.heard("low-1", m.TellPreempting)
    assert (told.withdrawn, told.by) == (True, "vip@laptop of priority 1")
    rm.said.clear()
    rm.come_back("low-1", (0, *where))
    assert rm.heard("low-1", m.TellPreempting) == [], "it is told once"


def test_who_never_heard_of_a_notice_hears_nothing_of_its_end() -> None:
    rm = held(1)
    rm.cut("low-1")
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.release("vip")
    rm.come_back("low-1", (0, *rm.placed("low-1")[0]))
    assert rm.heard("low-1", m.TellPreempting) == []


def test_a_notice_that_may_not_have_been_heard_of_leaves_some_time() -> None:
    rm = held(1, tenant_ttl_s=60.0)
    where = rm.placed("low-1")[0]
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.now += GRACE_S + 10.0  # the manager is away
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("low-1", (0, *where))
    assert [one.grace_s for one in rm.heard("low-1", m.TellPreempting)] == [5.0]
    rm.come_back("vip")
    rm.after(4.0)
    assert rm.on("low-1") == ["slice-0"]
    rm.after(1.0)
    assert rm.on("vip") == ["slice-0"]


def test_a_preemptor_that_is_away_preempts_nobody_until_it_is_back() -> None:
    rm = held(1, preemption_grace_s=3.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("vip")
    rm.after(4.0)
    assert rm.on("low-1") == ["slice-0"]
    rm.come_back("vip")
    rm.after(0.0)
    assert rm.on("vip") == ["slice-0"]


def test_a_preemptor_that_does_not_come_back_preempts_nobody() -> None:
    rm = held(1, preemption_grace_s=3.0)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.cut("vip")
    rm.after(60.0)
    assert rm.on("low-1") == ["slice-0"]
    assert [one.withdrawn for one in rm.heard("low-1", m.TellPreempting)] == [False, True]


def test_a_plan_is_due_when_those_whom_it_still_takes_have_had_their_time() -> None:
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


def test_a_plan_that_loses_a_victim_as_it_is_due_gets_others_and_is_due_again() -> None:
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


def test_who_ran_on_more_slices_than_there_are_is_refused_once_it_must_wait() -> None:
    rm = Rm(4)
    rm.ask("big", 4)
    rm = rm.restarted(slices=dict.fromkeys(rm.config.slices, 3))
    for number in range(3):
        rm.join(f"slice-{number}")
    rm.come_back("big")
    rm.after(30.0)
    assert len(rm.on("big")) == 3
    rm.ask("vip", 1, priority=9, queue=math.inf)
    rm.after(60.0)
    [refused] = rm.heard("big", m.RefuseTenant)
    assert refused.kind is m.RefusalKind.TOO_MANY
    assert "the service has only 3 x tpuv6e:2x2 (4 wanted)" in refused.message
    rm.ask("other", 1, queue=math.inf)
    assert rm.on("other")


def test_a_victim_moved_in_the_same_tick_is_not_sent_the_placement_that_it_lost() -> None:
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
    assert rm.heard("low", m.TellPlaced) == []
    unplaced = [(one.virtual_index, one.slice_id) for one in rm.heard("low", m.TellUnplaced)]
    assert unplaced == [(0, "slice-0"), (1, "slice-1")]


def test_a_preemptor_that_loses_a_slice_in_the_same_tick_runs_once_it_is_whole() -> None:
    rm = held(2, preemption_grace_s=GRACE_S, hung_after_s=GRACE_S + 1.0)
    rm.ask("vip", 2, priority=1)
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat("slice-0")
    rm.do(m.Tick())
    assert rm.on("vip") == ["slice-1"]
    assert [one.slice_id for one in rm.heard("vip", m.TellPlaced)] == ["slice-1"]
    assert rm.heard("vip", m.TellUnplaced) == []
    assert rm.heard("vip", m.TellRunning) == []
    rm.join("slice-0", life="2")
    assert [one.slice_id for one in rm.heard("vip", m.TellPlaced)] == ["slice-1", "slice-0"]
    assert [one.placed for one in rm.heard("vip", m.TellRunning)] == [2]


def test_an_elastic_preemptor_that_loses_a_slice_in_the_same_tick_runs_on_the_rest() -> None:
    rm = Rm(2, preemption_grace_s=GRACE_S, hung_after_s=GRACE_S + 1.0)
    rm.ask("low", 2)
    rm.ask("vip", 2, elastic=1, priority=1)
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat("slice-0")
    rm.do(m.Tick())
    assert rm.on("vip") == ["slice-1"]
    assert [one.slice_id for one in rm.heard("vip", m.TellPlaced)] == ["slice-1"]
    assert [(one.placed, one.wanted) for one in rm.heard("vip", m.TellRunning)] == [(1, 2)]


def test_a_victim_that_hangs_as_its_notice_ends_is_not_preempted_in_vain() -> None:
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
    assert [one.withdrawn for one in rm.heard("low", m.TellPreempting)] == [True]
    assert rm.announced("tenant.preempted") == []
    rm.join(held_by_low, life="2")
    assert set(noticed(rm)) == {"low"}, "now it would suffice"
