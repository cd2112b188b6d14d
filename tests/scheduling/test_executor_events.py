"""Starts and losses of executors are announced, recorded and counted."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.events.tenants import (
    ExecutorLost,
    ExecutorStarted,
    SlicePlaced,
    SliceUnplaced,
)
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


def test_executors_that_serve_before_a_restart_are_not_started_by_it() -> None:
    rm = Rm(1, executors=True)
    rm.ask("ada")
    serve(rm, "slice-0", 1)
    rm = rm.restarted()
    rm.join("slice-0")
    serve(rm, "slice-0", 1)
    rm.come_back("ada", (0, "slice-0", 1))
    assert rm.state == "serving"
    assert not rm.announced("executor.started")
