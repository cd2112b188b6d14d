"""Starts and losses of executors are announced, recorded and counted."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.events.tenants import ExecutorLost, ExecutorStarted
from shared_pathways_service.scheduling.book.persisted import Persist
from tests.scheduling.harness import TWO_HOSTS, Rm, events_of
from tests.scheduling.test_executor_assignments import KILLED, PAIR, end, serve


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
