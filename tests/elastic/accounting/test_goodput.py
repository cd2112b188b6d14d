"""Where the time of a run went: runs whose account is known."""

from __future__ import annotations

import pytest

from shared_pathways_service.elastic.accounting.goodput import report_of
from shared_pathways_service.elastic.accounting.history import LossPoint, Mark, Sight, SliceCount
from shared_pathways_service.elastic.accounting.incidents import Repair
from shared_pathways_service.events import Event
from tests.elastic.accounting.runs import lost_slice, reported, spent
from tests.elastic.accounting.telling import Process


def test_without_events_there_is_no_account() -> None:
    assert report_of([]) is None
    assert report_of([Event.of("connect.done", source="connect")]) is None
    assert report_of([Process().tell(0, "checkpoint.kept", path="a/1")]) is None


def test_a_single_event_is_a_run_without_duration() -> None:
    process = Process()
    process.tell(0, "elastic.run.started", enabled=True)
    report = reported(process)
    assert (report.wall_s, report.goodput, report.outcome, report.last_step) == (0, 0, None, None)


def test_a_run_without_faults() -> None:
    process = Process()
    process.tell(0, "elastic.run.started", enabled=True)
    process.attempt(3, "0,1,2", duration_s=2.0)
    process.tell(4, "elastic.restored", step=0, duration_s=0.5, origin="initial")
    process.tell(9, "elastic.step", step=1, duration_s=4.5, first=True)
    process.steps(9, 2, 5)
    process.tell(14, "elastic.run.done", outcome="done")
    report = reported(process)
    assert spent(report) == {"good": 5, "waiting": 2, "startup": 2.5, "compile": 3.5, "other": 1}
    assert report.wall_s == 14
    assert report.goodput == pytest.approx(5 / 14)
    assert (report.steps, report.steps_lost, report.last_step) == (5, 0, 5)
    assert (report.outcome, report.processes, report.attempts) == ("done", 1, 1)
    assert not report.incidents


def test_the_loss_is_that_of_steps_whose_results_survived() -> None:
    process = Process()
    process.start(0)
    for step in (1, 2, 3, 4):
        process.tell(step, "elastic.step", step=step, duration_s=1.0, loss=float(step))
    process.tell(6, "elastic.restored", step=2, duration_s=1.0, origin="checkpoint")
    # A loss that is not finite is text in a ledger.
    for step, loss in ((3, 30.0), (4, "nan"), (5, None)):
        process.tell(5 + step, "elastic.step", step=step, duration_s=1.0, loss=loss)
    assert reported(process).losses == [
        LossPoint(1.0, 1, 1.0), LossPoint(2.0, 2, 2.0), LossPoint(8.0, 3, 30.0)
    ]  # fmt: skip


def test_a_long_loss_curve_has_means_of_equal_parts() -> None:
    process = Process()
    process.start(0)
    for step in range(1, 1002):
        process.tell(step, "elastic.step", step=step, duration_s=1.0, loss=float(step))
    losses = reported(process).losses
    assert len(losses) == 334
    assert losses[0] == LossPoint(3.0, 3, 2.0)
    assert losses[-1] == LossPoint(1001.0, 1001, 1000.5)


def test_a_lost_slice() -> None:
    report = reported(lost_slice())
    assert spent(report) == {
        "good": 12,
        "compile": 1.75,
        "lost_steps": 4,
        "detect": 1,
        "confirm": 2,
        "waiting": 3,
        "restore": 1.5,
    }
    assert (report.steps, report.steps_lost, report.attempts) == (12, 4, 2)
    assert report.slice_losses == {"1": 1}
    [incident] = report.incidents
    assert (incident.cause, incident.at_s, incident.repair_s) == ("slice_down", 11.5, 8.75)
    assert (incident.step, incident.errors, incident.lost_steps) == (10, 1, 4)
    assert incident.slices == ("1",)
    once = Repair(count=1, mean_s=8.75, median_s=8.75, max_s=8.75)
    assert report.mttr == {"slice_down": once}
    assert report.slice_counts == [SliceCount(0, 3), SliceCount(11.5, 2)]
    assert report.marks == [
        Mark(11.5, Sight.LOST, slice="1"),
        Mark(17.25, Sight.RESTORED, step=6),
    ]


def test_a_killed_process_with_the_clock_of_another_machine() -> None:
    first = lost_slice()
    second = Process(wall=40, monotonic=7)
    second.tell(0, "checkpoint.kept", path="a/10")
    second.tell(0.5, "elastic.run.started", enabled=True)
    second.attempt(1, "0,1,2")
    second.tell(2, "elastic.restored", step=10, duration_s=1.0, origin="checkpoint")
    second.steps(2, 11, 13)
    second.tell(5, "elastic.run.done", outcome="done")
    report = reported(first, second)
    assert report.wall_s == 45
    now, before = spent(report), spent(reported(first))
    assert now.pop("down") == 40 - 25.25
    assert now.pop("startup") == 1
    assert now == {
        **before,
        "good": before["good"] - 2 + 3,
        "lost_steps": before["lost_steps"] + 2,
        "restore": before["restore"] + 1,
    }
    [_, incident] = report.incidents
    assert (incident.cause, incident.at_s, incident.repair_s) == ("process", 25.25, 17.75)
    assert (incident.lost_steps, incident.slices) == (2, ())
    assert report.slice_counts[2:] == [SliceCount(25.25, 0), SliceCount(41, 3), SliceCount(45, 0)]
    assert Mark(25.25, Sight.KILLED) in report.marks
    assert (report.processes, report.outcome, report.steps) == (2, "done", 13)


def test_a_resumed_run_was_not_killed() -> None:
    first, second = Process(), Process(wall=10, monotonic=3)
    first.start(0)
    first.steps(0, 1, 3)
    first.tell(3, "elastic.run.done", outcome="interrupted")
    second.start(0)
    second.steps(0, 4, 5)
    report = reported(first, second)
    assert spent(report) == {"good": 5, "down": 7}
    assert not report.incidents
    assert Sight.KILLED not in {mark.sight for mark in report.marks}


def test_within_a_process_the_wall_clock_may_be_set() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 2)
    # An hour back, and then on.
    process.wall, process.monotonic = -3600, 1000
    process.steps(2, 3, 4)
    report = reported(process)
    assert (spent(report), report.wall_s) == ({"good": 4}, 4)


def test_between_processes_time_does_not_run_backwards() -> None:
    first, second = Process(), Process(wall=-3600)
    for process, step in ((first, 1), (second, 4)):
        process.start(0)
        process.steps(0, step, step + 2)
    report = reported(first, second)
    assert (spent(report), report.wall_s) == ({"good": 6}, 6)


def test_events_of_other_processes_have_their_own_clocks() -> None:
    process = lost_slice()
    alone = reported(process)
    fields = process.events[3].to_dict()
    other = Event.from_dict({**fields, "source": "rm", "monotonic": 9e9, "kind": "elastic.step"})
    process.events.insert(4, other)
    assert reported(process) == alone


def test_the_pause_of_a_save_counts_at_its_start() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(4.5, "elastic.step", step=4, duration_s=1.5)
    # Begun at 3 and at 3.25: the quarter of a second in which both held it up is counted once.
    process.tell(4.75, "snapshot.taken", step=3, duration_s=1.5, blocked_s=0.5)
    process.tell(5.0, "checkpoint.saved", step=3, duration_s=2.0, blocked_s=0.5, path="a/3")
    process.steps(4.5, 5, 8)
    report = reported(process)
    assert spent(report) == {"good": 7.75, "checkpoint": 0.5, "snapshot": 0.25}
    assert (report.checkpoints, report.snapshots) == (1, 1)
    assert report.marks == [Mark(5.0, Sight.SAVED, step=3)]


def test_a_save_may_pause_longer_than_a_step() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 4)
    # From 0.5 to 2.5: half of the first step, all of the second, half of the third.
    process.tell(4, "checkpoint.saved", step=1, duration_s=3.5, blocked_s=2.0)
    assert spent(reported(process)) == {"good": 2, "checkpoint": 2}


def test_counts() -> None:
    process = Process()
    process.start(0)
    for number, kind in enumerate(
        ["checkpoint.quarantined", "checkpoint.failed", "snapshot.failed", "snapshot.taken"]
    ):
        process.tell(1, kind, step=number)
    process.tell(2, "slice.down", slice=2)
    process.tell(3, "slice.down", slice=1)
    process.tell(4, "slice.down", slice=2)
    report = reported(process)
    assert (report.quarantined, report.failed_saves, report.snapshots) == (1, 2, 1)
    assert report.slice_losses == {"1": 1, "2": 2}


def test_a_single_first_step_is_compared_with_other_attempts() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(3, "elastic.retry", cause="scale_up")
    process.attempt(3, "0,1,2")
    process.tell(8, "elastic.step", step=4, duration_s=5.0, first=True)
    assert spent(reported(process)) == {"good": 4, "compile": 4}
