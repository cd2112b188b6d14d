"""What stress programs count as missed, which ends them with 1."""

from __future__ import annotations

import argparse
import sys
import types
from typing import Any

import pytest

from stress import client_kills
from stress.elastic_soak import __main__ as elastic_soak
from stress.executor_kills import __main__ as executor_kills
from stress.growth import seconds_of
from stress.upload_ends.__main__ import Kept
from stress.upload_ends.rounds import Load, Outcome


def test_a_kill_after_which_the_first_step_is_late_is_missed() -> None:
    def each(victim: str, step_s: float) -> dict[str, Any]:
        return {"victim": victim, "at": "copy", "step_s": step_s}

    rounds = [each("host", 2.9), each("stopped worker", 30.0), each("executor", 4.25)]
    result = {"wanted_s": 3.0, "each": rounds, "faults": ["left: socket s"]}
    assert list(executor_kills.missed(result)) == [
        "left: socket s",
        "round 2, executor during copy: the first step came after 4.2 s (wanted: 3 s)",
    ]


@pytest.mark.parametrize(("orphans", "status"), [({}, 0), ({"kill1-0": ["pod", "agent"]}, 1)])
def test_what_a_killed_client_leaves_is_missed(
    orphans: dict[str, list[str]],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = {
        "kills": 2,
        "clean_s": [1.0, 2.0],
        "moments": [{"at": "connect"}, {"at": "closing"}],
        "orphans": orphans,
    }
    monkeypatch.setattr(client_kills, "measure", lambda *_: result)
    monkeypatch.setattr(sys, "argv", ["client_kills"])
    assert client_kills.main() == status
    expected = "missed its limit: left of kill1-0: pod, agent\n" if status else ""
    assert capsys.readouterr().err == expected


def test_growth_in_a_soak_is_missed() -> None:
    record = elastic_soak.Record(argparse.Namespace(), 3)
    grows = {"threads": {"first": 20.0, "last": 40.0, "flat": False}}
    run: dict[str, Any] = {"error": "SoakError: late", "differences": {"wrong": ["other steps"]}}
    result = {"success_rate": 2 / 3, "survived": 2, "wanted": 3, "run": run, "growth": grows}
    assert record.grown() == {}
    assert list(elastic_soak.missed(result)) == [
        "survived 2 of 3 disruptions",
        "ended with SoakError: late",
        "other steps",
        "threads grew from 20 to 40",
    ]
    run = {"error": None, "differences": {"wrong": []}}
    assert list(elastic_soak.missed({"success_rate": 1, "run": run, "growth": {}})) == []


def test_uploads_that_fail_together_are_missed_unless_they_are_the_control() -> None:
    kept = Kept(Load(), None)
    assert list(kept.missed()) == []
    kept.outcomes["control"].append(Outcome("lost", "errors", False, 0.1))
    kept.outcomes["guarded"].append(Outcome("lost", "hung", False, 0.1))
    kept.outcomes["guarded"].append(Outcome("late", "errors", True, 0.1))
    kept.outcomes["guarded"].append(Outcome("late", "errors", False, 0.1))
    assert len(list(kept.missed())) == 3
    kept.outcomes["control"].append(Outcome("lost", "SIGSEGV", True, 0.1))
    assert len(list(kept.missed())) == 2


def test_seconds_of_laps_are_from_end_to_end() -> None:
    laps = [types.SimpleNamespace(seconds=seconds) for seconds in (2.0, 3.5, 7.0)]
    assert seconds_of(laps) == [2.0, 1.5, 3.5]
