"""Starts and losses of executors are announced, recorded and counted."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from shared_pathways_service.events.tenants import (
    ExecutorLost,
    ExecutorStarted,
    SlicePlaced,
    SliceUnplaced,
)
from shared_pathways_service.scheduling.book.messages import NotifyExecutors
from shared_pathways_service.scheduling.book.persisted import Persist
from tests.scheduling.harness import TWO_HOSTS, Rm, events_of
from tests.scheduling.test_executor_assignments import KILLED, PAIR, end, serve
from tests.scheduling.test_failed_placements import report


def test_starts_and_losses_of_executors_are_announced_and_recorded() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    rm.now += 3.0
    serve(rm, PAIR, 1, 0, 1)
    serve(rm, PAIR, 1, 1)  # a report that is repeated
    held: dict[str, Any] = {
        "tenant": "ada",
        "slice": PAIR,
        "virtual_index": 0,
        "slice_id": PAIR,
        "instance_type": str(TWO_HOSTS),
    }
    assert [one for one in events_of(rm.said) if isinstance(one, ExecutorStarted)] == [
        ExecutorStarted(duration_s=3.0, generation=1, **held)
    ]
    end(rm, PAIR, 1, host=1)
    reason = f"the executor of host 1 of {PAIR} {KILLED}"
    assert [one for one in events_of(rm.said) if isinstance(one, ExecutorLost)] == [
        ExecutorLost(reason=reason, generation=1, host=1, exit_code=-9, **held)
    ]
    census = rm.core.census(rm.now)
    assert census.executors == {False: 2}
    serve(rm, PAIR, 2, 0)
    assert rm.core.census(rm.now).executors == {False: 1, True: 1}
    recorded = [
        (one.kind, one.slice, one.generation, one.reason)
        for said in rm.said
        if isinstance(said, Persist)
        for one in said.decisions
        if one.kind.startswith("executor.")
    ]
    assert recorded == [("executor.started", PAIR, 1, ""), ("executor.lost", PAIR, 1, reason)]


def test_a_placement_is_reported_as_starting_until_its_executors_serve() -> None:
    rm = Rm({TWO_HOSTS: 2}, executors=True)
    rm.ask("ada", (TWO_HOSTS, TWO_HOSTS))

    def starting() -> list[bool | None]:
        [ada] = rm.core.status(rm.now, "ada").tenants
        return [one.starting for one in ada.slices]

    assert [one.starting for one in events_of(rm.said) if isinstance(one, SlicePlaced)] == [
        True
    ] * 2
    assert starting() == [True, True]
    serve(rm, PAIR, 1, 0)
    assert starting() == [True, True]
    serve(rm, PAIR, 1, 1)
    assert starting() == [False, True]
    end(rm, PAIR, 1, host=1)
    assert starting() == [True, True]
    # Without executors, none start.
    rm = Rm(1)
    rm.ask("ada")
    assert [one.starting for one in events_of(rm.said) if isinstance(one, SlicePlaced)] == [None]
    assert starting() == [None]


def test_which_placements_start_is_unknown_after_a_restart() -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada", 2)
    rm = rm.restarted()

    def starting() -> list[bool | None]:
        return [one.starting for one in rm.tenant("ada").slices]

    assert starting() == [None, None]
    for slice_id in ("slice-0", "slice-1"):
        rm.join(slice_id)
    assert starting() == [None, None]
    serve(rm, "slice-1", 2)
    assert starting() == [None, False]
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert rm.state == "serving"
    assert starting() == [True, False]
    serve(rm, "slice-0", 1)
    assert starting() == [False, False]


def test_executors_that_a_proxy_cannot_use_are_announced_and_recorded_as_lost() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    report(rm, 1)
    reason = f"ada cannot reach the executor on host 0 of {PAIR}: no answer"
    about = [one for one in events_of(rm.said) if isinstance(one, ExecutorLost | SliceUnplaced)]
    assert [(type(one), one.generation, one.reason) for one in about] == [
        (ExecutorLost, 1, reason),
        (SliceUnplaced, 1, reason),
    ]
    lost = about[0]
    assert isinstance(lost, ExecutorLost)
    assert (lost.host, lost.exit_code, lost.slice_id) == (0, None, PAIR)
    # The proxy has ended the other one with it, which is not a second loss.
    end(rm, PAIR, 1, host=1)
    assert rm.announced("executor.lost") == ["executor.lost"]
    recorded = [
        (one.kind, one.reason)
        for said in rm.said
        if isinstance(said, Persist)
        for one in said.decisions
        if one.kind == "executor.lost"
    ]
    assert recorded == [("executor.lost", reason)]


def test_a_loss_without_a_host_names_none() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    report(rm, 1, host_index=None)
    [lost] = [one for one in events_of(rm.said) if isinstance(one, ExecutorLost)]
    assert (lost.host, lost.reason) == (None, f"ada cannot reach {PAIR}: no answer")


def _starts(rm: Rm) -> list[tuple[int | None, float]]:
    """Returns the recorded starts since `said` was cleared: each generation and its duration."""
    recorded = [
        one.generation
        for said in rm.said
        if isinstance(said, Persist)
        for one in said.decisions
        if one.kind == "executor.started"
    ]
    events = [one for one in events_of(rm.said) if isinstance(one, ExecutorStarted)]
    assert [one.generation for one in events] == recorded
    return [(one.generation, one.duration_s or 0.0) for one in events]


@pytest.mark.parametrize("reports_last", ["worker", "proxy"])
def test_a_start_is_recorded_once_over_restarts(reports_last: str) -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    serve(rm, PAIR, 1, 0, 1)
    assert _starts(rm) == [(1, 0.0)]
    for _ in range(2):
        rm = rm.restarted()
        rm.join(PAIR, 0, kind=TWO_HOSTS)
        serve(rm, PAIR, 1, 0)
        if reports_last == "worker":
            rm.come_back("ada", (0, PAIR, 1))
            # The recovery ends with the last worker's hello, before its report.
            rm.join(PAIR, 1, kind=TWO_HOSTS)
            assert rm.state == "serving"
            serve(rm, PAIR, 1, 1)
        else:
            rm.join(PAIR, 1, kind=TWO_HOSTS)
            serve(rm, PAIR, 1, 1)
            rm.come_back("ada", (0, PAIR, 1))
        assert rm.state == "serving"
        assert rm.heard("ada", NotifyExecutors)
        assert [one.starting for one in rm.tenant("ada").slices] == [False]
        assert _starts(rm) == []


def test_a_start_while_the_resource_manager_is_away_is_recorded_after_its_recovery() -> None:
    rm = Rm({TWO_HOSTS: 1}, executors=True)
    rm.ask("ada", (TWO_HOSTS,))
    serve(rm, PAIR, 1, 0)
    rm = rm.restarted()
    rm.join(PAIR, 0, kind=TWO_HOSTS)
    rm.join(PAIR, 1, kind=TWO_HOSTS)
    serve(rm, PAIR, 1, 0, 1)
    assert _starts(rm) == []
    rm.come_back("ada", (0, PAIR, 1))
    assert _starts(rm) == [(1, 1.0)]
    rm = rm.restarted()
    rm.come_back("ada", (0, PAIR, 1))
    rm.join(PAIR, 0, kind=TWO_HOSTS)
    rm.join(PAIR, 1, kind=TWO_HOSTS)
    serve(rm, PAIR, 1, 0, 1)
    assert _starts(rm) == []


def test_a_start_takes_no_negative_time_if_the_clock_was_set_back_over_a_restart() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    rm.now -= 60.0
    rm = rm.restarted()
    rm.join("slice-0")
    rm.come_back("ada", (0, "slice-0", 1))
    serve(rm, "slice-0", 1)
    assert _starts(rm) == [(1, 0.0)]


@pytest.mark.parametrize("lost", ["state", "field"])
def test_without_a_record_of_starts_executors_that_serve_had_started_before(lost: str) -> None:
    rm = Rm(2, executors=True)
    rm.ask("ada", 2)
    serve(rm, "slice-0", 1)
    if lost == "field":
        # A release before this field wrote the state.
        grants = tuple(dataclasses.replace(one, starting=None) for one in rm.restored.grants)
        rm.restored = dataclasses.replace(rm.restored, grants=grants)
    rm = rm.restarted(state_lost=lost == "state")
    rm.asked["ada"] = dataclasses.replace(rm.asked["ada"], running=True, last_generation=2)
    rm.join("slice-0")
    rm.join("slice-1")
    serve(rm, "slice-0", 1)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.after(rm.config.recovering_s)
    assert rm.state == "serving"
    assert _starts(rm) == []
    serve(rm, "slice-1", 2)
    assert [generation for generation, _ in _starts(rm)] == [2]
    rm = rm.restarted(state_lost=False)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    for index in range(2):
        rm.join(f"slice-{index}")
        serve(rm, f"slice-{index}", index + 1)
    assert rm.state == "serving"
    assert _starts(rm) == []
