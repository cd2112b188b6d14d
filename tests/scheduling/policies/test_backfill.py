"""Backfill: who may start before the head of the line, and who may not."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import OTHER, SMALL, Rm


def ask_for(rm: Rm, tenant: str, wants: int, lifetime_s: float | None) -> None:
    rm.ask(tenant, wants, queue=math.inf, lifetime=lifetime_s)


def test_slices_unwanted_by_the_head_go_to_the_next_tenant() -> None:
    rm = Rm({SMALL: 1, OTHER: 3})
    rm.ask("ada", (SMALL,))
    rm.ask("head", (SMALL, OTHER), queue=math.inf)
    rm.ask("two", (OTHER, OTHER), queue=math.inf)
    assert len(rm.placed("two")) == 2, "one is left for the head"
    rm.ask("one", (OTHER,), queue=math.inf)
    assert rm.queue == ["head", "one"]
    rm.release("ada")
    assert len(rm.placed("head")) == 2


def test_a_type_wanted_whole_by_the_head_is_reserved_for_it() -> None:
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
def test_a_tenant_that_ends_before_the_head_could_start_goes_first(
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


def test_a_holder_of_unknown_lifetime_may_leave_at_any_time() -> None:
    rm = Rm(3)
    ask_for(rm, "holder", 1, 1000.0)
    rm.ask("unknown", 1)
    rm.ask("head", 2, queue=math.inf)
    ask_for(rm, "brief", 1, 10.0)
    assert rm.queue == ["head", "brief"]


def test_a_short_tenant_may_not_take_slices_of_a_preemption() -> None:
    rm = Rm(2)
    ask_for(rm, "holder", 1, 1000.0)
    rm.ask("vip", 2, priority=1, queue=math.inf)
    ask_for(rm, "brief", 1, 10.0)
    assert rm.queue == ["vip", "brief"]
    assert rm.slice("slice-1").kept_for == "vip"


def test_each_of_two_heads_is_left_its_slices() -> None:
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
            request=TenantRequest(
                name=tenant,
                virtual_slices=wants,
                elastic_slices=elastic,
                priority=priority,
                queue_timeout_s=math.inf,
                max_lifetime_s=lifetime_s,
            ),
            incarnation=f"{tenant}/1",
        )
    )


def test_a_change_of_one_type_lets_a_tenant_start_on_another() -> None:
    rm = Rm({SMALL: 2, OTHER: 1}, ready=False)
    rm.join("o-0", kind=OTHER)
    ask_first(rm, "head", (SMALL, SMALL, OTHER), 2)
    ask_first(rm, "brief", (OTHER,), 1, 10.0)
    ask_first(rm, "holder", (SMALL,), 5, 1000.0)
    assert rm.queue == ["holder", "head", "brief"]
    rm.join("slice-0")
    assert rm.on("holder") == ["slice-0"]
    assert rm.on("brief") == ["o-0"], "head cannot start before holder has ended"


def test_a_tenant_passed_in_one_queue_does_not_block_another() -> None:
    rm = Rm({SMALL: 2, OTHER: 1})
    ask_first(rm, "holder", (SMALL, OTHER), 5, 1000.0)
    ask_first(rm, "first", (SMALL, SMALL), 2)
    ask_first(rm, "elastic", (SMALL, OTHER), 1, elastic=1)
    ask_first(rm, "brief", (SMALL,), 0, 10.0)
    assert rm.queue == ["first", "elastic", "brief"], "elastic could start at any moment"
    ask_first(rm, "passing", (OTHER,), 3)
    assert rm.queue == ["passing", "first", "elastic"]
