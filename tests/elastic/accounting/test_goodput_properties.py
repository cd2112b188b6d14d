"""Goodput of simulated runs with known causes, and of random events."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.accounting.account import Cause
from shared_pathways_service.elastic.accounting.goodput import report_of
from shared_pathways_service.events import Event
from tests.elastic.accounting.telling import Process

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
def test_each_second_is_attributed_to_its_cause(scenes: list[Scene]) -> None:
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
