"""Tenants whose slices were released for idleness: their return, reconnects and restarts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from shared_pathways_service.scheduling.event_log import decisions_of
from tests.scheduling.harness import Rm
from tests.scheduling.policies.idle_scenes import RELEASE_S, WARNING_S, parked, warned


def test_it_is_queued_last_when_it_works_again() -> None:
    rm = parked()
    rm.ask("eve", 1)
    rm.ask("bob", 1, queue=math.inf)
    rm.said.clear()
    decided = decisions_of(rm.tell("ada", 2))
    assert [one.kind for one in decided] == [DecisionKind.QUEUED]
    assert rm.queue == ["bob", "ada"], "as if it asked now"
    assert [one.position for one in rm.heard("ada", m.NotifyQueued)] == [2]
    assert rm.tenant("ada").state is TenantState.WAITING
    rm.after(1e5)
    assert rm.queue == ["bob", "ada"], "it waits as long as it takes, though it would not queue"
    rm.release("eve")
    rm.release("bob")
    assert rm.on("ada") == ["slice-0"]
    assert rm.tenant("ada").state is TenantState.RUNNING


def test_with_a_free_slice_it_returns_at_once_and_is_watched_again() -> None:
    rm = parked()
    rm.tell("ada", 2)
    assert rm.on("ada") == ["slice-0"]
    assert len(rm.heard("ada", m.NotifyRunning)) == 1
    rm.tell("ada", 2)  # asked for by its running
    rm.said.clear()
    rm.after(RELEASE_S - WARNING_S)
    assert len(rm.heard("ada", m.NotifyIdle)) == 1


def test_a_tenant_stays_idle_after_a_reconnect_and_is_notified() -> None:
    rm = parked()
    rm.cut("ada")
    rm.come_back("ada")
    assert [one.released for one in rm.heard("ada", m.NotifyIdle)] == [True]
    assert rm.heard("ada", m.NotifyQueued) == []
    rm.tell("ada", 1, RELEASE_S)
    assert rm.tenant("ada").state is TenantState.IDLE


def test_it_expires_and_is_released_like_any_tenant() -> None:
    rm = parked()
    rm.cut("ada")
    rm.after(rm.config.tenant_ttl_s)
    assert rm.tenants == []
    rm = parked()
    rm.release("ada")
    assert rm.tenants == []
    (ended,) = decisions_of(rm.said)
    assert (ended.kind, ended.began) == (DecisionKind.RELEASED, None), "being parked is no wait"


def test_a_restart_keeps_it_idle_and_repeats_warnings() -> None:
    rm = parked().restarted()
    rm.come_back("ada")
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.tell("ada", 2)
    rm.join("slice-0")
    assert rm.on("ada") == ["slice-0"]

    rm = warned()
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    claim = (0, *rm.placed("ada")[0])
    rm = rm.restarted()
    rm.come_back("ada", claim)
    rm.join("slice-0")
    rm.tell("ada", 1, RELEASE_S)
    rm.after(0)
    assert [one.release_s for one in rm.heard("ada", m.NotifyIdle)] == [WARNING_S]
    rm.tell("ada", 1, RELEASE_S)
    rm.after(WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1)
    assert rm.on("ada") == []


def idle_without_state(**changes: Any) -> Rm:
    """Returns a manager that lost its state, and to which the proxy of an idle tenant comes."""
    rm = parked()
    rm.come_back("ada")
    (told,) = [one for one in rm.heard("ada", m.NotifyIdle) if one.released]
    fresh = rm.restarted(state_lost=True, **changes)
    fresh.asked["ada"] = dataclasses.replace(
        fresh.asked["ada"], last_generation=1, idle_count=told.count
    )
    fresh.come_back("ada")
    fresh.join("slice-0")
    fresh.after(21)
    assert fresh.state == "serving"
    return fresh


def test_after_a_loss_of_state_it_stays_idle_until_it_works() -> None:
    rm = idle_without_state()
    rm.tell("ada", 1, RELEASE_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    assert rm.queue == []
    assert rm.heard("ada", m.NotifyIdle)[-1].released
    again = rm.restarted(state_lost=False)
    again.come_back("ada")
    again.join("slice-0")
    assert again.tenant("ada").state is TenantState.IDLE
    again.ask("bob", 1)
    again.tell("ada", 2)
    assert (again.on("bob"), again.queue) == (["slice-0"], ["ada"])
    again.after(60)
    again.release("bob")
    assert again.on("ada") == ["slice-0"], "it waits for as long as it takes"


def test_a_manager_without_state_and_policy_queues_it() -> None:
    rm = idle_without_state(idle_release_s=None, idle_warning_s=0.0)
    assert rm.on("ada") == ["slice-0"]


def test_a_manager_without_the_policy_queues_it() -> None:
    rm = parked().restarted(idle_release_s=None, idle_warning_s=0.0)
    rm.come_back("ada")
    rm.join("slice-0")
    assert rm.on("ada") == ["slice-0"]
