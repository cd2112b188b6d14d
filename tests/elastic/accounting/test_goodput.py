"""Where the time of a run went: hand-reckoned runs, simulated ones, and any events at all."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.accounting.account import Cause
from shared_pathways_service.elastic.accounting.goodput import Report, report_of
from shared_pathways_service.elastic.accounting.history import Mark, Sight, SliceCount
from shared_pathways_service.elastic.accounting.incidents import Repair
from shared_pathways_service.events import Event
from tests.elastic.accounting.telling import Process


def reported(*processes: Process) -> Report:
    report = report_of([event for process in processes for event in process.events])
    assert report is not None
    return report


def spent(report: Report) -> dict[str, float]:
    """What time went on, to the millisecond, without what it did not go on."""
    told = {cause.value: round(s, 3) for cause, s in report.badput_s.items() if round(s, 3)}
    return {"good": round(report.good_s, 3), **told}


def test_nothing_comes_of_no_events_of_elastic_training() -> None:
    assert report_of([]) is None
    assert report_of([Event.of("connect.done", source="connect")]) is None
    assert report_of([Process().tell(0, "checkpoint.kept", path="a/1")]) is None


def test_one_event_is_a_run_of_no_time() -> None:
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


def lost_slice() -> Process:
    """Ten steps; slice 1 goes at 10.4 and is seen at 11; back to step 6 with two slices."""
    process = Process()
    process.start(0)
    process.steps(0, 1, 10)
    process.tell(11, "slice.suspect", slice=1)
    process.tell(11.5, "slice.down", slice=1)
    process.tell(12, "elastic.error", step=10, verdict="slice", decision="retry", slices="1")
    process.tell(12.5, "elastic.retry", step=10, attempt=2, cause="slice_down")
    process.tell(13, "elastic.wait.started", have=2, want=3)
    process.tell(16, "elastic.wait.done", duration_s=3.0, have=3, want=3)
    process.attempt(16, "0,2", attempt=2, duration_s=3.5, down_events=1)
    process.tell(17.25, "elastic.restored", step=6, duration_s=1.0, origin="checkpoint")
    process.tell(20.25, "elastic.step", step=7, duration_s=2.75, first=True)
    process.steps(20.25, 8, 12)
    return process


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


def test_a_killed_process_whose_clock_was_another_machines() -> None:
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


def test_a_run_that_ended_and_is_gone_on_with_was_not_killed() -> None:
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


def test_events_of_others_have_other_clocks() -> None:
    process = lost_slice()
    alone = reported(process)
    fields = process.events[3].to_dict()
    other = Event.from_dict({**fields, "source": "rm", "monotonic": 9e9, "kind": "elastic.step"})
    process.events.insert(4, other)
    assert reported(process) == alone


def test_saves_hold_training_up_where_they_began() -> None:
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


def test_a_save_may_hold_up_more_than_a_step() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 4)
    # From 0.5 to 2.5: half of the first step, all of the second, half of the third.
    process.tell(4, "checkpoint.saved", step=1, duration_s=3.5, blocked_s=2.0)
    assert spent(reported(process)) == {"good": 2, "checkpoint": 2}


def test_an_error_begins_with_the_slice_it_names() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 2)
    process.tell(2.25, "slice.down", slice=0)
    process.tell(2.5, "slice.down", slice=1)
    process.tell(3, "elastic.error", verdict="slice", decision="retry", slices="1")
    [incident] = reported(process).incidents
    assert (incident.at_s, incident.slices) == (2.5, ("1",))


def test_a_proxy_that_is_gone() -> None:
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


def test_growing_again_is_no_failure() -> None:
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


def test_what_fails_during_a_recovery_is_part_of_it() -> None:
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


def test_a_slice_not_in_use_that_flaps_is_no_sign() -> None:
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


def test_a_slice_that_was_suspected_and_is_well_is_no_sign() -> None:
    process = Process()
    process.start(0)
    process.tell(0.5, "slice.suspect", slice=1)
    process.tell(0.6, "slice.active", slice=1)
    process.steps(0, 1, 3)
    process.tell(5, "elastic.error", verdict="slice", decision="retry", slices="2")
    process.tell(5, "elastic.retry", cause="slice_down")
    assert spent(reported(process)) == {"good": 3, "detect": 2}


@pytest.mark.parametrize("ending", ["killed", "failed"])
def test_what_was_not_repaired_has_no_time_to_repair(ending: str) -> None:
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


def test_a_users_error_is_no_recovery() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(4, "elastic.error", verdict="user", decision="raise")
    process.tell(5, "elastic.run.done", outcome="failed")
    report = reported(process)
    assert spent(report) == {"good": 3, "other": 2}
    assert not report.incidents


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


def test_a_first_step_without_others_is_measured_by_those_of_other_attempts() -> None:
    process = Process()
    process.start(0)
    process.steps(0, 1, 3)
    process.tell(3, "elastic.retry", cause="scale_up")
    process.attempt(3, "0,1,2")
    process.tell(8, "elastic.step", step=4, duration_s=5.0, first=True)
    assert spent(reported(process)) == {"good": 4, "compile": 4}


# ---- simulated runs, of which each second's cause is known


@dataclasses.dataclass(frozen=True)
class Scene:
    """Some steps, and what interrupts them."""

    steps: int
    compile_s: float
    fault: str
    rewind: int
    times: Sequence[float]


_TIMES = st.floats(0, 50).map(lambda s: round(s, 3))
_SCENES = st.builds(
    Scene,
    steps=st.integers(2, 6),
    compile_s=_TIMES,
    fault=st.sampled_from(["slice", "proxy", "scale_up", "kill"]),
    rewind=st.integers(0, 8),
    times=st.lists(_TIMES, min_size=5, max_size=5),
)


def _simulate(scenes: Sequence[Scene]) -> tuple[list[Event], dict[Cause, float], int, int]:
    """Returns a run's events, and what its report must say: seconds, steps kept, steps lost."""
    process = Process()
    every: list[Process] = [process]
    truth = dict.fromkeys(Cause, 0.0)
    at, step, lost = 0.0, 0, 0
    process.start(at)
    for scene in scenes:
        process.tell(at + 1 + scene.compile_s, "elastic.step", step=step + 1,
                     duration_s=1 + scene.compile_s, first=True)  # fmt: skip
        truth[Cause.COMPILE] += scene.compile_s
        at = process.steps(at + 1 + scene.compile_s, step + 2, step + scene.steps)
        step += scene.steps
        a, b, c, d, e = scene.times
        if scene.fault == "kill":
            every.append(process := Process(wall=every[-1].wall + at + a, monotonic=b))
            truth[Cause.DOWN] += a
            process.tell(0, "elastic.run.started", enabled=True)
            truth[Cause.STARTUP] += c
            at = c
        elif scene.fault == "scale_up":
            truth[Cause.OTHER] += a
            process.tell(at + a, "elastic.retry", cause="scale_up")
            truth[Cause.CONFIRM] += b
            at += a + b
        else:
            process.tell(at + a, "slice.down", slice=1)
            truth[Cause.DETECT] += a
            decided = {"verdict": scene.fault, "decision": "retry", "slices": "1"}
            process.tell(at + a + b, "elastic.error", **decided)
            truth[Cause.CONFIRM] += b
            at += a + b
            if scene.fault == "proxy":
                process.tell(at + c, "elastic.reconnected", duration_s=c)
                truth[Cause.RECONNECT] += c
                at += c
            process.tell(at, "elastic.retry", cause="slice_down")
        process.attempt(at + d, "0,1,2", duration_s=d)
        truth[Cause.WAITING] += d
        rewind = 0 if scene.fault == "scale_up" else min(scene.rewind, step)
        process.tell(at + d + e, "elastic.restored", step=step - rewind, duration_s=e, origin="x")
        truth[Cause.RESTORE] += e
        step, lost = step - rewind, lost + rewind
        at += d + e
    truth[Cause.LOST_STEPS] = float(lost)
    return [event for process in every for event in process.events], truth, step, lost


@given(st.lists(_SCENES, min_size=1, max_size=6))
def test_each_second_is_put_down_to_what_it_went_on(scenes: list[Scene]) -> None:
    events, truth, kept, lost = _simulate(scenes)
    report = report_of(events)
    assert report is not None
    # Between processes the wall clock counts, which events tell to the millisecond.
    near: Callable[[float], Any] = lambda s: pytest.approx(s, abs=0.002 * len(scenes))  # noqa: E731
    assert {cause: near(s) for cause, s in truth.items()} == report.badput_s
    assert report.good_s == near(kept)
    assert (report.steps, report.steps_lost) == (kept, lost)
    assert len(report.incidents) == len(scenes)
    assert [i.repair_s is None for i in report.incidents] == [False] * (len(scenes) - 1) + [True]
    assert sum(i.lost_steps for i in report.incidents) == lost


# ---- any events at all

_KINDS = [
    *("elastic.run.started", "elastic.attempt.started", "elastic.restored", "elastic.step"),
    *("elastic.error", "elastic.wait.started", "elastic.wait.done", "elastic.retry"),
    *("elastic.reconnected", "elastic.run.done", "slice.suspect", "slice.down", "slice.active"),
    *("checkpoint.saved", "checkpoint.kept", "checkpoint.quarantined", "snapshot.taken", "novel"),
]
_SECONDS = st.one_of(st.none(), st.floats(-10, 1e6), st.sampled_from([math.nan, math.inf]))
_DATA = st.fixed_dictionaries(
    {},
    optional={
        "slices": st.sampled_from(["", "0", "0,1", "0,1,2", 7]),
        "first": st.booleans(),
        "blocked_s": st.one_of(_SECONDS, st.just("nan")),
        "decision": st.sampled_from(["retry", "raise"]),
        "verdict": st.sampled_from(["slice", "user", "proxy", "unclear"]),
        "cause": st.sampled_from(["slice_down", "scale_up", "proxy"]),
        "origin": st.sampled_from(["initial", "checkpoint"]),
    },
)
_EVENTS = st.builds(
    Event.of,
    kind=st.sampled_from(_KINDS),
    source=st.sampled_from(["elastic"] * 9 + ["connect"]),
    time=st.floats(0, 3000).map(lambda s: Process(wall=s).tell(0, "x").time),
    monotonic=st.floats(0, 1e7),
    slice=st.one_of(st.none(), st.integers(0, 2), st.just("a")),
    step=st.one_of(st.none(), st.integers(0, 12)),
    duration_s=_SECONDS,
    data=_DATA,
)


@given(st.lists(_EVENTS, max_size=40))
def test_goodput_and_badput_are_the_wall_time(events: list[Event]) -> None:
    report = report_of(events)
    if report is None:
        return
    assert all(seconds >= 0 for seconds in report.badput_s.values())
    assert 0 <= report.goodput <= 1
    assert report.good_s + math.fsum(report.badput_s.values()) == pytest.approx(report.wall_s)
    told = sum(e.kind == "elastic.step" and e.source == "elastic" for e in events)
    assert report.steps + report.steps_lost == told
    assert all(i.repair_s is None or i.repair_s >= 0 for i in report.incidents)
    assert all(0 <= mark.at <= report.wall_s for mark in report.marks)
    ats = [count.at for count in report.slice_counts]
    assert ats == sorted(ats)
