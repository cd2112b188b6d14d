"""Limits of tenants and teams, stated lifetimes, and the order that aging makes."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import Limits
from shared_pathways_service.scheduling.policies.aging import band, longest_lead
from tests.scheduling.harness import Rm


def test_a_request_above_the_limit_is_refused() -> None:
    rm = Rm(4, limits=Limits(tenant_slices=2))
    rm.ask("ada", 3, queue=math.inf)
    refused = rm.refusal("ada")
    assert refused.kind is m.RefusalKind.LIMIT
    assert refused.message == "the limit of slices per tenant is 2 (3 wanted)"
    rm.ask("bob", 2)
    assert len(rm.placed("bob")) == 2


def test_a_queue_timeout_above_the_limit_is_refused() -> None:
    rm = Rm(1, limits=Limits(wait_s=60.0))
    rm.ask("ada", 1, queue=60.0)
    assert rm.on("ada") == ["slice-0"]
    for tenant, queue in (("bob", 61.0), ("eve", math.inf)):
        rm.ask(tenant, 1, queue=queue)
        assert "the longest allowed wait is 60 s" in rm.refusal(tenant).message


@pytest.mark.parametrize("limit", [-1, 0, 5])
def test_a_priority_above_the_limit_is_refused_before_it_preempts_anybody(limit: int) -> None:
    rm = Rm(1, limits=Limits(priority=limit))
    rm.ask("ada", 1, priority=limit)
    assert rm.on("ada") == ["slice-0"]
    for tenant, priority in (("bob", limit + 1), ("eve", 2**31 - 1)):
        rm.ask(tenant, 1, priority=priority, queue=math.inf)
        refused = rm.refusal(tenant)
        assert refused.kind is m.RefusalKind.LIMIT
        assert f"the highest allowed priority is {limit} ({priority} wanted)" in refused.message
    assert rm.on("ada") == ["slice-0"]


def test_a_team_shares_slices_and_tenants() -> None:
    rm = Rm(8, limits=Limits(team_slices=3, team_tenants=2))
    rm.ask("ada", 1, team="red")
    rm.ask("bob", 3, team="red")
    assert "the limit of slices for team red is 3 (1 in use" in rm.refusal("bob").message
    rm.ask("eve", 1, team="red")
    rm.ask("joe", 1, team="red")
    assert "the limit of tenants for team red is 2 (2 exist)" in rm.refusal("joe").message
    rm.ask("kim", 2, team="blue")
    rm.ask("lee", 2)
    assert (len(rm.placed("kim")), len(rm.placed("lee"))) == (2, 2)
    rm.release("ada")
    rm.ask("max", 2, team="red")
    assert len(rm.placed("max")) == 2


def test_a_verified_user_without_a_team_has_the_limits_of_one() -> None:
    rm = Rm(8, limits=Limits(team_slices=3, team_tenants=2), users_verified=True)
    rm.ask("a", 2, user="red")
    rm.ask("b", 2, user="red")
    assert "the limit of slices for user red is 3 (2 in use" in rm.refusal("b").message
    # A team of that name is another group.
    rm.ask("c", 3, user="red", team="red")
    rm.ask("d", 1, user="red")
    rm.ask("e", 1, user="blue")
    assert [len(rm.placed(name)) for name in "cde"] == [3, 1, 1]
    rm.release("a")
    rm.ask("f", 2, user="red")
    assert len(rm.placed("f")) == 2


def test_a_team_keeps_its_count_over_a_restart() -> None:
    rm = Rm(4, limits=Limits(team_slices=2), tenant_ttl_s=60.0)
    rm.ask("ada", 2, team="red")
    rm = rm.restarted()
    rm.ask("bob", 1, team="red")
    assert rm.refusal("bob").kind is m.RefusalKind.LIMIT


@pytest.mark.parametrize("value", [0, -1, math.inf])
def test_an_invalid_limit_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="wait_s"):
        Limits(wait_s=value)


# ---- lifetimes


def test_a_stated_lifetime_ends_on_time_without_the_proxy() -> None:
    rm = Rm(1, tenant_ttl_s=1000.0)
    rm.ask("ada", 1, lifetime=100.0)
    assert rm.tenant("ada").ends_at == rm.now + 100.0
    rm.after(60.0)
    where = rm.placed("ada")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("ada", (0, *where))
    rm.after(38.0)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1.0)
    assert rm.tenants == []
    assert rm.refusal("ada").message == "its stated lifetime is over"


# ---- aging


def test_each_doubling_of_a_priority_is_a_band() -> None:
    assert [band(p) for p in (0, 1, 3, -1, -3)] == [0, 1, 2, -1, -2]
    assert band(2**31 - 1) == 31
    assert longest_lead(1_000_000, 2_000_000, 60.0) == pytest.approx(60.0, abs=1e-3)
    assert longest_lead(2_000_000, 1_000_000, 60.0) == 0.0


@pytest.mark.parametrize(("later_s", "first"), [(59.0, "high"), (61.0, "low")])
def test_a_higher_priority_leads_for_the_time_of_its_bands(later_s: float, first: str) -> None:
    rm = Rm(1, aging_s=60.0)
    rm.ask("holder", 1, priority=9)
    rm.ask("low", 1, queue=math.inf)
    rm.after(later_s)
    rm.ask("high", 1, priority=1, queue=math.inf)
    assert rm.queue[0] == first
    rm.release("holder")
    assert rm.on(first) == ["slice-0"]


def test_the_order_does_not_change_while_tenants_wait() -> None:
    rm = Rm(1, aging_s=60.0)
    rm.ask("holder", 1, priority=9)
    for number, priority in enumerate((0, 3, 1, 0, 2, 7)):
        rm.ask(f"t{number}", 1, priority=priority, queue=math.inf)
        rm.after(37.0)
    before = rm.queue
    rm.after(10_000.0)
    assert rm.queue == before


def test_without_aging_the_priority_alone_decides() -> None:
    rm = Rm(1, aging_s=None)
    rm.ask("holder", 1, priority=9)
    rm.ask("low", 1, queue=math.inf)
    rm.after(1e5)
    rm.ask("high", 1, priority=1, queue=math.inf)
    assert rm.queue == ["high", "low"]


def test_a_limit_does_not_end_running_work() -> None:
    rm = Rm(2, limits=Limits(team_slices=1))
    rm.ask("ada", 1, team="red")
    where = rm.placed("ada")[0]
    fresh = rm.restarted(state_lost=True)
    fresh.join("slice-0")
    fresh.join("slice-1")
    fresh.ask("bob", 1, team="red", queue=math.inf)
    fresh.asked["ada"] = dataclasses.replace(fresh.asked["ada"], running=True)
    fresh.come_back("ada", (0, *where))
    assert fresh.heard("ada", m.RefuseTenant) == []
    assert fresh.placed("ada") == {0: where}
