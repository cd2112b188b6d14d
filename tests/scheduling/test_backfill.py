"""Backfill: who may start before the head of the line, and who may not."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.test_limits import ask


def ask_for(rm: Rm, tenant: str, wants: int, lifetime_s: float | None) -> None:
    ask(rm, tenant, wants, queue_timeout_s=math.inf, max_lifetime_s=lifetime_s)


def test_slices_that_the_head_does_not_want_go_to_who_comes_behind_it() -> None:
    rm = Rm({SMALL: 1, OTHER: 3})
    rm.ask("ada", (SMALL,))
    rm.ask("head", (SMALL, OTHER), queue=math.inf)
    rm.ask("two", (OTHER, OTHER), queue=math.inf)
    assert len(rm.placed("two")) == 2, "one is left for the head"
    rm.ask("one", (OTHER,), queue=math.inf)
    assert rm.queue == ["head", "one"]
    rm.release("ada")
    assert len(rm.placed("head")) == 2


def test_what_the_head_wants_all_of_goes_to_nobody_else() -> None:
    rm = Rm(3)
    rm.ask("ada", 2)
    rm.ask("head", 2, queue=math.inf)
    rm.ask("one", 1, queue=math.inf)
    assert rm.queue == ["head", "one"]


@pytest.mark.parametrize(
    ("holder_s", "lifetime_s", "starts"),
    [
        (1000.0, 900.0, True),
        (1000.0, 1000.0, True),
        (1000.0, 1001.0, False),
        (1000.0, None, False),
        (None, 1.0, False),
    ],
)
def test_who_is_gone_before_the_head_could_start_may_go_first(
    holder_s: float | None, lifetime_s: float | None, starts: bool
) -> None:
    rm = Rm(2)
    ask_for(rm, "holder", 1, holder_s)
    rm.ask("head", 2, queue=math.inf)
    ask_for(rm, "brief", 1, lifetime_s)
    assert bool(rm.placed("brief")) == starts
    if starts:
        rm.after(1000.0)
        assert len(rm.placed("head")) == 2, "no later than without the other one"


def test_the_head_may_use_what_one_of_unknown_lifetime_leaves_at_any_time() -> None:
    rm = Rm(3)
    ask_for(rm, "holder", 1, 1000.0)
    rm.ask("unknown", 1)
    rm.ask("head", 2, queue=math.inf)
    ask_for(rm, "brief", 1, 10.0)
    assert rm.queue == ["head", "brief"]


def test_who_is_gone_in_time_may_not_take_what_others_are_preempted_for() -> None:
    rm = Rm(2)
    ask_for(rm, "holder", 1, 1000.0)
    rm.ask("vip", 2, priority=1, queue=math.inf)
    ask_for(rm, "brief", 1, 10.0)
    assert rm.queue == ["vip", "brief"]
    assert rm.slice("slice-1").kept_for == "vip"


def test_two_heads_are_both_left_what_they_want() -> None:
    third = InstanceType.parse("tpuv5e:4x4")
    rm = Rm({SMALL: 1, OTHER: 1, third: 3})
    rm.ask("a", (SMALL,))
    rm.ask("b", (OTHER,))
    rm.ask("head-1", (SMALL, third), queue=math.inf)
    rm.ask("head-2", (OTHER, third), queue=math.inf)
    rm.ask("two", (third, third), queue=math.inf)
    assert rm.queue == ["head-1", "head-2", "two"]
    rm.ask("one", (third,), queue=math.inf)
    assert len(rm.placed("one")) == 1


def ask_first(
    rm: Rm,
    tenant: str,
    wants: tuple[InstanceType, ...],
    priority: int,
    lifetime_s: float | None = None,
    elastic: int = 0,
) -> None:
    rm.do(
        m.TenantAsked(
            tenant=tenant,
            incarnation=f"{tenant}/1",
            virtual_slices=wants,
            num_elastic=elastic,
            priority=priority,
            queue_timeout_s=math.inf,
            max_lifetime_s=lifetime_s,
        )
    )


def test_what_is_learnt_of_one_type_lets_somebody_start_on_another() -> None:
    rm = Rm({SMALL: 2, OTHER: 1}, ready=False)
    rm.join("o-0", kind=OTHER)
    ask_first(rm, "head", (SMALL, SMALL, OTHER), 2)
    ask_first(rm, "brief", (OTHER,), 1, 10.0)
    ask_first(rm, "holder", (SMALL,), 5, 1000.0)
    assert rm.queue == ["holder", "head", "brief"]
    rm.join("slice-0")
    assert rm.on("holder") == ["slice-0"]
    assert rm.on("brief") == ["o-0"], "head cannot start before holder has ended"


def test_who_is_passed_in_one_line_holds_up_nobody_in_another() -> None:
    rm = Rm({SMALL: 2, OTHER: 1})
    ask_first(rm, "holder", (SMALL, OTHER), 5, 1000.0)
    ask_first(rm, "first", (SMALL, SMALL), 2)
    ask_first(rm, "elastic", (SMALL, OTHER), 1, elastic=1)
    ask_first(rm, "brief", (SMALL,), 0, 10.0)
    assert rm.queue == ["first", "elastic", "brief"], "elastic could start at any moment"
    ask_first(rm, "passing", (OTHER,), 3)
    assert rm.queue == ["passing", "first", "elastic"]
