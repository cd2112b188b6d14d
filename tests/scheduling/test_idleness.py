"""Slices of tenants that do not work: when they are taken back, when not, and what comes then."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.states import TenantState
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.explanations import explain
from tests.scheduling.harness import SMALL, Rm

RELEASE_S = 600.0
WARNING_S = 60.0


def service(slices: int = 1, **config: Any) -> Rm:
    times = {"idle_release_s": RELEASE_S, "idle_warning_s": WARNING_S}
    return Rm(slices, **{**times, **config})


def running(slices: int = 1, **config: Any) -> Rm:
    """A service whose tenant `ada` has worked once, just now, and holds all slices."""
    rm = service(slices, **config)
    rm.ask("ada", slices)
    rm.tell("ada", 1)
    rm.said.clear()
    return rm


def warned(**config: Any) -> Rm:
    rm = running(**config)
    rm.after(RELEASE_S - WARNING_S)
    return rm


def parked(**config: Any) -> Rm:
    rm = warned(**config)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.said.clear()
    rm.after(WARNING_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.said.clear()
    return rm


def test_who_does_nothing_is_warned_and_loses_its_slices() -> None:
    rm = running()
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.heard("ada", m.TellIdle) == []
    rm.after(1)
    (told,) = rm.heard("ada", m.TellIdle)
    assert (told.idle_s, told.release_s) == (RELEASE_S - WARNING_S, WARNING_S)
    assert (told.withdrawn, told.released) == (False, False)
    assert rm.announced("tenant.idling") == ["tenant.idling"]
    assert rm.tenant("ada").idle_release_s == WARNING_S
    rm.tell("ada", 1, told.idle_s)
    rm.said.clear()

    rm.after(WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"], "it was told of more time"
    rm.after(1)
    (lost,) = rm.heard("ada", m.TellUnplaced)
    assert lost.reason == "released: idle for 600 s"
    (told,) = rm.heard("ada", m.TellIdle)
    assert (told.idle_s, told.released) == (RELEASE_S, True)
    assert rm.announced("tenant.idled") == ["tenant.idled"]
    assert rm.tenant("ada").state is TenantState.IDLE
    assert rm.queue == [], "it keeps nobody from anything"
    rm.ask("eve", 1)
    assert rm.on("eve") == ["slice-0"]


def test_work_withdraws_the_warning_and_the_time_begins_again() -> None:
    rm = warned()
    rm.after(WARNING_S - 1)
    rm.said.clear()
    rm.tell("ada", 2)
    assert [one.withdrawn for one in rm.heard("ada", m.TellIdle)] == [True]
    assert rm.announced() == ["tenant.idling_withdrawn"]
    rm.said.clear()
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.heard("ada", m.TellIdle) == []
    rm.after(1)
    assert len(rm.heard("ada", m.TellIdle)) == 1


def test_work_withdraws_it_also_after_the_warning_was_answered() -> None:
    rm = warned()
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.after(WARNING_S - 1)
    rm.tell("ada", 2)
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"]


def test_nobody_is_taken_at_its_silence() -> None:
    rm = warned()
    rm.after(10 * RELEASE_S)
    assert rm.on("ada") == ["slice-0"], "the warning was not answered"
    rm.tell("ada", 1, 11 * RELEASE_S)
    rm.after(0)
    assert rm.tenant("ada").state is TenantState.IDLE


def test_a_proxy_that_never_tells_keeps_its_slices() -> None:
    rm = service()
    rm.ask("old", 1)
    rm.after(100 * RELEASE_S)
    assert rm.on("old") == ["slice-0"]
    assert rm.tenant("old").idle_s is None


def test_without_the_policy_reports_change_nothing() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.tell("ada", 1, 1e6)
    rm.after(1e6)
    assert rm.on("ada") == ["slice-0"]


def test_a_tenant_that_never_worked_is_idle_from_its_placement_on() -> None:
    rm = service()
    rm.ask("ada", 1)
    rm.tell("ada", 0, 1e6)  # its process is old
    assert rm.tenant("ada").idle_s == 0
    rm.after(RELEASE_S - WARNING_S)
    assert len(rm.heard("ada", m.TellIdle)) == 1


def test_it_gets_slices_again_when_it_works_and_behind_those_who_wait() -> None:
    rm = parked()
    rm.ask("eve", 1)
    rm.ask("bob", 1, queue=math.inf)
    rm.said.clear()
    decided = decisions_of(rm.tell("ada", 2))
    assert [one.kind for one in decided] == [DecisionKind.QUEUED]
    assert rm.queue == ["bob", "ada"], "as if it asked now"
    assert [one.position for one in rm.heard("ada", m.TellQueued)] == [2]
    assert rm.tenant("ada").state is TenantState.WAITING
    rm.after(1e6)
    assert rm.queue == ["bob", "ada"], "it waits as long as it takes, though it would not queue"
    rm.release("eve")
    rm.release("bob")
    assert rm.on("ada") == ["slice-0"]
    assert rm.tenant("ada").state is TenantState.RUNNING


def test_with_a_free_slice_it_is_back_at_once_and_watched_again() -> None:
    rm = parked()
    rm.tell("ada", 2)
    assert rm.on("ada") == ["slice-0"]
    assert len(rm.heard("ada", m.TellRunning)) == 1
    rm.tell("ada", 2)  # asked for by its running
    rm.said.clear()
    rm.after(RELEASE_S - WARNING_S)
    assert len(rm.heard("ada", m.TellIdle)) == 1


def test_one_that_is_parked_stays_so_over_reconnects_and_hears_of_it() -> None:
    rm = parked()
    rm.cut("ada")
    rm.come_back("ada")
    assert [one.released for one in rm.heard("ada", m.TellIdle)] == [True]
    assert rm.heard("ada", m.TellQueued) == []
    rm.tell("ada", 1, RELEASE_S)
    assert rm.tenant("ada").state is TenantState.IDLE


def test_one_that_is_parked_is_given_up_and_released_as_any_other() -> None:
    rm = parked()
    rm.cut("ada")
    rm.after(rm.config.tenant_ttl_s)
    assert rm.tenants == []
    rm = parked()
    rm.release("ada")
    assert rm.tenants == []
    (ended,) = decisions_of(rm.said)
    assert (ended.kind, ended.began) == (DecisionKind.RELEASED, None), "being parked is no wait"


def test_a_warning_that_cannot_be_given_is_given_later() -> None:
    rm = running(tenant_ttl_s=1e4)
    rm.cut("ada")
    rm.after(RELEASE_S)
    assert rm.heard("ada", m.TellIdle) == []
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    rm.tell("ada", 1, RELEASE_S)
    rm.after(0)
    assert [one.release_s for one in rm.heard("ada", m.TellIdle)] == [WARNING_S]


def test_who_is_away_when_its_time_is_over_keeps_its_slices() -> None:
    rm = warned(tenant_ttl_s=1e4)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.cut("ada")
    rm.after(WARNING_S)
    assert rm.on("ada") == ["slice-0"]


def test_a_warning_is_told_again_to_a_proxy_that_comes_back() -> None:
    rm = warned()
    rm.cut("ada")
    rm.said.clear()
    rm.after(10)
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    assert [one.release_s for one in rm.heard("ada", m.TellIdle)] == [WARNING_S - 10]


def test_after_a_restart_one_that_is_parked_is_so_still_and_the_idle_are_warned_anew() -> None:
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
    assert [one.release_s for one in rm.heard("ada", m.TellIdle)] == [WARNING_S]
    rm.tell("ada", 1, RELEASE_S)
    rm.after(WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1)
    assert rm.on("ada") == []


def idle_without_state(**changes: Any) -> Rm:
    """Returns a manager that lost its state, and to which the proxy of an idle tenant comes."""
    rm = parked()
    rm.come_back("ada")
    (told,) = [one for one in rm.heard("ada", m.TellIdle) if one.released]
    fresh = rm.restarted(state_lost=True, **changes)
    fresh.asked["ada"] = dataclasses.replace(
        fresh.asked["ada"], last_generation=1, idle_count=told.count
    )
    fresh.come_back("ada")
    fresh.join("slice-0")
    fresh.after(21)
    assert fresh.state == "serving"
    return fresh


def test_after_a_loss_of_state_one_that_is_idle_is_so_still_until_it_works() -> None:
    rm = idle_without_state()
    rm.tell("ada", 1, RELEASE_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    assert rm.queue == []
    assert rm.heard("ada", m.TellIdle)[-1].released
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


def test_a_manager_without_state_and_without_the_policy_queues_who_was_idle() -> None:
    rm = idle_without_state(idle_release_s=None, idle_warning_s=0.0)
    assert rm.on("ada") == ["slice-0"]


def test_a_manager_that_knows_of_no_such_policy_any_more_queues_who_was_parked() -> None:
    rm = parked().restarted(idle_release_s=None, idle_warning_s=0.0)
    rm.come_back("ada")
    rm.join("slice-0")
    assert rm.on("ada") == ["slice-0"]


def test_what_an_idle_victim_leaves_goes_to_whom_it_would_be_preempted_for() -> None:
    rm = warned(preemption_grace_s=1e4)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.ask("vip", 1, priority=5)
    assert rm.tenant("ada").preempting_by
    rm.after(WARNING_S)
    assert rm.on("vip") == ["slice-0"]
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.tell("ada", 2)
    assert rm.tenant("ada").state is TenantState.WAITING


def test_preemption_ends_a_warning() -> None:
    rm = warned(preemption_grace_s=1.0)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.ask("vip", 1, priority=5)
    rm.after(1)
    assert rm.tenant("ada").state is TenantState.PREEMPTED
    rm.after(1e4)
    assert rm.queue == ["ada"]


def test_a_part_of_an_elastic_gang_that_was_never_placed_is_no_longer_wanted() -> None:
    rm = service(2)
    rm.ask("eve", 1)
    rm.ask("ada", 2, elastic=1)
    rm.tell("ada", 1)
    rm.after(RELEASE_S - WARNING_S)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.after(WARNING_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.release("eve")
    assert rm.on("ada") == []
    rm.tell("ada", 2)
    assert sorted(rm.on("ada")) == ["slice-0", "slice-1"]


def test_the_history_and_the_explanation_say_why() -> None:
    rm = warned()
    decisions: list[Decision] = []

    def told() -> str:
        found = explain("ada", rm.core.status(rm.now), decisions, {}, rm.now)
        assert found is not None
        return "\n".join(found.sentences)

    assert "It is idle for 9 min; its slices are taken back in 60 s if it stays so" in told()
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.said.clear()
    rm.after(WARNING_S)
    for one in rm.said:
        decisions += decisions_of([one])
    assert [one.kind for one in decisions] == [DecisionKind.UNPLACED, DecisionKind.IDLED]
    assert {one.reason for one in decisions} == {"released: idle for 600 s"}
    assert told().startswith("ada is idle and holds nothing for 0 s\nIt asks for its slices again")
    assert "Last, ada was idle, and its slices were taken back: released: idle for 600 s" in told()
    rm.ask("eve", 1)
    rm.tell("ada", 2)
    assert "Last, ada was idle" in told(), "why it waits"


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"idle_release_s": 10.0, "idle_warning_s": 10.0}, "idle_warning_s=10.0"),
        ({"idle_release_s": 10.0, "idle_warning_s": -1.0}, "idle_warning_s=-1.0"),
        ({"idle_release_s": -1.0}, "idle_release_s=-1.0"),
    ],
)
def test_times_that_cannot_be(times: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RmConfig(slices={SMALL: 1}, **times)  # type: ignore[arg-type]
