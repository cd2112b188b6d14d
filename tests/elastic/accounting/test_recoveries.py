"""Recoveries in the account of a run: what is part of one, and what is not."""

from __future__ import annotations

import pytest

from shared_pathways_service.elastic.accounting.history import Sight, SliceCount
from tests.elastic.accounting.runs import reported, spent
from tests.elastic.accounting.telling import Process


def test_an_error_begins_with_the_slice_it_names() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 2)
    process.tell(2.25, "slice.down", slice=0)
    process.tell(2.5, "slice.down", slice=1)
    process.tell(3, "elastic.error", verdict="slice", decision="retry", slices="1")
    [incident] = reported(process).incidents
    assert (incident.at_s, incident.slices) == (2.5, ("1",))


def test_a_lost_proxy() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 4)
    process.tell(6, "elastic.error", step=4, verdict="proxy", decision="retry")
    process.tell(8, "elastic.reconnected", duration_s=1.5)
    process.tell(8, "elastic.retry", attempt=2, cause="proxy")
    process.attempt(8, "0,1,2")
    process.tell(9, "elastic.restored", step=4, duration_s=1.0, origin="snapshot")
    process.steps(9, 5, 6)
    report = reported(process)
    assert spent(report) == {
        "good": 6,
        "detect": 2,
        "confirm": 0.5,
        "reconnect": 1.5,
        "restore": 1,
    }
    assert report.mttr["proxy"].max_s == 4


def test_growing_again_is_not_a_failure() -> None:
    process = Process()
    process.start(0, "0,2")
    process.steps(0, 1, 4)
    process.tell(4, "slice.active", slice=1)
    process.tell(4, "elastic.retry", attempt=1, cause="scale_up")
    process.attempt(5, "0,1,2")
    process.tell(6, "elastic.restored", step=4, duration_s=1.0, origin="snapshot")
    process.steps(6, 5, 6)
    report = reported(process)
    assert spent(report) == {"good": 6, "confirm": 1, "restore": 1}
    assert (report.scale_ups, report.steps_lost, report.slice_losses) == (1, 0, {})
    assert [(i.cause, i.repair_s, i.slices) for i in report.incidents] == [("scale_up", 3, ())]
    assert report.slice_counts == [SliceCount(0, 2), SliceCount(5, 3)]
    assert [mark.sight for mark in report.marks] == [Sight.GREW, Sight.RESTORED]


def test_growing_again_does_not_begin_with_a_slice_that_is_down() -> None:
    process = Process()
    process.start(0, "0,2")
    process.steps(0, 1, 4)
    process.tell(4.5, "slice.down", slice=2)
    process.tell(5, "elastic.retry", attempt=1, cause="scale_up")
    process.tell(5.5, "slice.down", slice=0)
    process.attempt(6, "1")
    process.steps(6, 5, 6)
    [incident] = reported(process).incidents
    assert (incident.cause, incident.at_s, incident.slices) == ("scale_up", 5, ())


def test_a_failure_during_a_recovery_is_part_of_it() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 5)
    process.tell(6, "elastic.error", verdict="slice", decision="retry", slices="1")
    process.tell(6, "elastic.retry", attempt=2, cause="slice_down")
    process.attempt(7, "0,2")
    process.tell(8, "slice.down", slice=2)
    process.tell(8, "elastic.error", verdict="slice", decision="retry", slices="2")
    process.tell(8, "elastic.retry", attempt=3, cause="slice_down")
    process.attempt(9, "0")
    process.tell(10, "elastic.restored", step=2, duration_s=1.0, origin="checkpoint")
    process.steps(10, 3, 6)
    report = reported(process)
    [incident] = report.incidents
    assert (incident.errors, incident.lost_steps, incident.slices) == (2, 3, ("1", "2"))
    assert incident.repair_s == 5
    assert report.attempts == 3
    assert spent(report) == {"good": 6, "lost_steps": 3, "detect": 2, "confirm": 2, "restore": 1}


def test_a_flapping_unused_slice_is_not_a_symptom() -> None:
    process = Process()
    process.start(0, "0,1")
    process.steps(0, 1, 2)
    process.tell(2.1, "slice.down", slice=2)
    process.steps(2, 3, 9)
    process.tell(11, "elastic.error", verdict="proxy", decision="retry")
    process.tell(11, "elastic.retry", cause="proxy")
    process.steps(12, 10, 10)
    [incident] = reported(process).incidents
    assert (incident.at_s, incident.repair_s) == (11, 2)
    assert spent(reported(process))["detect"] == 2


def test_a_falsely_suspected_slice_is_not_a_symptom() -> None:
    process = Process()
    process.start(0)
    process.tell(0.5, "slice.suspect", slice=1)
    process.tell(0.6, "slice.active", slice=1)
    process.steps(0, 1, 3)
    process.tell(5, "elastic.error", verdict="slice", decision="retry", slices="2")
    process.tell(5, "elastic.retry", cause="slice_down")
    assert spent(reported(process)) == {"good": 3, "detect": 2}


@pytest.mark.parametrize("ending", ["killed", "failed"])
def test_an_unrepaired_failure_has_no_repair_time(ending: str) -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(4, "elastic.error", verdict="slice", decision="retry", slices="1")
    process.tell(5, "elastic.wait.started")
    if ending == "failed":
        process.tell(9, "elastic.run.done", outcome="failed", reason="timeout")
    else:
        process.tell(9, "slice.suspect", slice=2)
    report = reported(process)
    [incident] = report.incidents
    assert incident.repair_s is None
    assert report.mttr == {}
    assert spent(report) == {"good": 3, "detect": 1, "confirm": 1, "waiting": 4}


def test_a_users_error_is_not_a_recovery() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(4, "elastic.error", verdict="user", decision="raise")
    process.tell(5, "elastic.run.done", outcome="failed")
    report = reported(process)
    assert spent(report) == {"good": 3, "other": 2}
    assert not report.incidents
