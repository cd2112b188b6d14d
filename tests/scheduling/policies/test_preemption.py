"""Preemption: which victims are selected, what they are told, and when they return."""

from __future__ import annotations

import math

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.policies.scenes import GRACE_S, WAITS, held, noticed, state


def test_a_higher_priority_gets_the_slices_of_a_lower_one_after_a_notice() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=2_000_000, queue=WAITS)
    (told,) = rm.heard("low-1", m.NotifyPreempting)
    assert (told.grace_s, told.withdrawn, told.indices) == (GRACE_S, False, ())
    assert told.by == "vip@laptop of priority high-priority-job (2000000)"
    assert rm.on("low-1") == ["slice-0"], "the grace has just begun"
    assert rm.tenant("low-1").preempting_s == GRACE_S
    before = rm.placed("low-1")[0][1]
    rm.said.clear()

    rm.after(GRACE_S)
    (lost,) = rm.heard("low-1", m.NotifyUnplaced)
    assert lost.reason == "preempted by vip@laptop of priority high-priority-job (2000000)"
    assert lost.generation == before
    assert rm.on("vip") == ["slice-0"]
    assert state(rm, "low-1") is TenantState.PREEMPTED
    assert rm.queue == ["low-1"]
    assert rm.heard("low-1", m.NotifyQueued)[-1].position == 1
    assert rm.announced("tenant.preempted") == ["tenant.preempted"]

    rm.said.clear()
    rm.release("vip")
    assert rm.placed("low-1")[0][1] > before, "placed anew, on a new generation"
    assert [one.placed for one in rm.heard("low-1", m.NotifyRunning)] == [1]
    assert state(rm, "low-1") is TenantState.RUNNING


def test_only_lower_priorities_are_preempted() -> None:
    rm = held(2)
    rm.ask("equal", 1, queue=WAITS)
    assert noticed(rm) == {}
    rm.ask("less", 1, priority=-1, queue=WAITS)
    assert noticed(rm) == {}


def test_there_is_no_preemption_that_would_not_suffice() -> None:
    rm = Rm(3)
    rm.ask("low", 1)
    rm.ask("high", 2, priority=5)
    rm.ask("vip", 2, priority=5, queue=WAITS)
    assert noticed(rm) == {}, "low has one slice, and two are wanted"


def test_victims_are_the_lowest_then_the_youngest_and_as_few_as_possible() -> None:
    rm = Rm(5)
    for tenant, priority in (("a", 3), ("b", 1), ("c", 1), ("d", 2), ("e", 3)):
        rm.ask(tenant, 1, priority=priority)
    rm.ask("vip", 1, priority=9, queue=WAITS)
    assert list(noticed(rm)) == ["c"]
    rm.ask("next", 2, priority=9, queue=WAITS)
    assert sorted(noticed(rm)) == ["b", "c", "d"], "nobody is under notice for two"


def test_a_superfluous_victim_is_spared() -> None:
    rm = Rm(4)
    rm.ask("large", 3)
    rm.ask("small", 1)
    rm.ask("vip", 3, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["large"], "with it, small need not go"


def test_a_free_slice_of_the_plan_is_reserved_for_it() -> None:
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


def test_without_a_grace_preemption_is_immediate() -> None:
    rm = held(1, preemption_grace_s=0.0)
    rm.ask("vip", 1, priority=1)
    assert rm.core.next_deadline() == rm.now
    rm.after(0.0)
    assert rm.on("vip") == ["slice-0"]
    assert [one.grace_s for one in rm.heard("low-1", m.NotifyPreempting)] == [0.0]
    assert state(rm, "low-1") is TenantState.PREEMPTED


def test_a_preemptor_that_does_not_queue_waits_only_for_the_grace() -> None:
    rm = held(1)
    rm.ask("vip", 1, priority=1)
    assert rm.heard("vip", m.RefuseTenant) == []
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0"]


def test_a_preempted_tenant_has_no_queue_timeout() -> None:
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


def test_a_preempted_gang_returns_to_its_place_in_the_queue() -> None:
    rm = held(2)
    rm.ask("later", 1, queue=WAITS)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    rm.after(GRACE_S)
    assert rm.queue == ["low-1", "low-2", "later"]
    rm.release("vip")
    assert (rm.on("low-1"), rm.on("low-2")) == (["slice-0"], ["slice-1"])
    assert rm.queue == ["later"]


# ---- during the grace


def test_an_early_release_by_the_victim_starts_the_preemptor() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.release("low-2")
    assert rm.on("vip") == ["slice-1"]
    assert noticed(rm) == {}


def test_slices_of_a_first_victim_are_reserved_until_all_are_free() -> None:
    rm = held(2)
    rm.ask("vip", 2, priority=1, queue=WAITS)
    assert sorted(noticed(rm)) == ["low-1", "low-2"]
    rm.release("low-1")
    assert rm.slice("slice-0").kept_for == "vip"
    rm.ask("more", 1, priority=7, queue=WAITS)
    assert rm.on("more") == []
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-0", "slice-1"]


def test_a_still_higher_priority_plans_around_promised_slices() -> None:
    rm = held(2)
    rm.ask("vip", 1, priority=1, queue=WAITS)
    rm.ask("king", 1, priority=2, queue=WAITS)
    assert {name: by.split("@")[0] for name, by in noticed(rm).items()} == {
        "low-2": "vip",
        "low-1": "king",
    }
    rm.after(GRACE_S)
    assert (rm.on("vip"), rm.on("king")) == (["slice-1"], ["slice-0"])


def test_a_victim_may_preempt_and_be_preempted_again() -> None:
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


def test_an_elastic_preemptor_takes_only_its_minimum() -> None:
    rm = held(3)
    rm.ask("vip", 3, elastic=2, priority=1, queue=WAITS)
    assert list(noticed(rm)) == ["low-3"]
    rm.after(GRACE_S)
    assert rm.on("vip") == ["slice-2"]


def test_a_victim_releases_its_slices_of_other_types() -> None:
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


def test_a_tenant_behind_the_preemptor_is_placed_where_possible() -> None:
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


def test_a_victim_larger_than_the_service_is_refused() -> None:
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
