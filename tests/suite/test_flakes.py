"""Failures that are kept are listed, and filed as one readable file per test."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest
import yaml

from harness.results import surroundings
from harness.suite import flakes
from harness.suite.records import Failure, TestResult
from harness.suite.runs import runs_in

TEST = "tests/web/test_page.py::test_a_page[a/b-1 2]"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(flakes, "surroundings", lambda _packages: SURROUNDINGS)


SURROUNDINGS = {"commit": "c0ffee", "changed": False, "versions": {"jax": "0.12.0"}}


def flake(at: str, text: str = "E assert 1 == 2", test: str = TEST) -> flakes.Flake:
    failure = Failure(
        when="call",
        text=text,
        output=[["Captured stdout call", "a line  \n\tand a\x1b[0m tab\n"]],
        seeds={"seed": 7},
        at=at,
        load=[3.5, 2.0, 1.0],
        cpu_pressure="some avg10=50.00",
    )
    result = TestResult(test=test, outcome="failed", seconds=2.0, reason="", failures=(failure,))
    return flakes.Flake(result=result, phase="local", workers=3, alone_s=[1.0] * 5)


def test_filed_failure_has_its_evidence_and_room_for_an_explanation(tmp_path: Path) -> None:
    long = "\n".join(f"line {number}" for number in range(100))
    flakes.keep(flake("2026-11-28T19:00:00+00:00", long))
    [path] = flakes.file_kept(tmp_path / "filed")
    assert path.name == "web-test-page-test-a-page-a-b-1-2-9ebe9b.yaml"
    filed = yaml.safe_load(path.read_text())
    assert filed["test"] == TEST
    assert isinstance(filed["filed"], datetime.date)
    assert filed["failed_at"] == ["2026-11-28T19:00:00+00:00"]
    assert filed["explanation"] == ""
    assert filed["load"] == [3.5, 2.0, 1.0]
    assert filed["seeds"] == {"seed": 7}
    assert filed["commit"] == "c0ffee"
    assert filed["failure"].splitlines()[0] == "line 40"
    assert "Captured stdout call" in filed["output"]
    # Each line of a text is a line of the file.
    assert "\n  line 99\n" in path.read_text()
    assert flakes.kept_flakes() == {}


def test_second_failure_of_a_test_goes_to_its_entry(tmp_path: Path) -> None:
    flakes.keep(flake("2026-11-28T19:00:00+00:00"))
    [path] = flakes.file_kept(tmp_path / "filed")
    path.write_text(path.read_text().replace("explanation: ''", "explanation: a slow machine"))
    flakes.keep(flake("2026-11-29T19:00:00+00:00"))
    flakes.keep(flake("2026-11-30T19:00:00+00:00"))
    assert len(flakes.kept_flakes()) == 2
    assert flakes.file_kept(tmp_path / "filed") == [path]
    filed = yaml.safe_load(path.read_text())
    assert [moment[:10] for moment in filed["failed_at"]] == [
        "2026-11-28",
        "2026-11-29",
        "2026-11-30",
    ]
    assert filed["explanation"] == "a slow machine"


def test_tests_that_differ_in_a_sign_alone_have_entries_of_their_own(tmp_path: Path) -> None:
    tests = [f"tests/test_page.py::test[{sign}]" for sign in ("a b", "a-b", "é", "c" * 200)]
    for test in [*tests, tests[-1].replace("]", "d]")]:
        flakes.keep(flake("2026-11-28T19:00:00+00:00", test=test))
    assert len(flakes.kept_flakes()) == 5
    assert len(flakes.file_kept(tmp_path / "filed")) == 5


def test_versions_are_known_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    found = surroundings(flakes.PACKAGES)
    assert found["commit"] is None
    assert found["versions"]["jax"]


def test_command_lists_what_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert flakes.main([]) == 0
    assert capsys.readouterr().out == "no failure is kept\n"
    kept = flakes.keep(flake("2026-11-28T19:00:00+00:00"))
    assert flakes.main([]) == 0
    assert capsys.readouterr().out == (
        f"2026-11-28T19:00:00+00:00  load 3.5    {TEST}\n    {kept}\n"
    )
    assert flakes.main(["nosuch"]) == 2


def test_command_lists_the_runs_that_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    assert flakes.main(["runs"]) == 0
    assert capsys.readouterr().out == "no run is kept\n"
    run = {
        "date": "2026-11-28T01:02:03+00:00",
        **SURROUNDINGS,
        "load_at_start": [1.25, 0.5, 0.5],
        "seconds": 90.0,
        "phases": [{"name": "mixed", "tests": 7, "seconds": 61.2}, {"name": "gate", "seconds": 20}],
        "failed": ["a.py::test"],
        "flaky": ["b.py::test"],
    }
    directory = runs_in() / "20261128T010203"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(run))
    (runs_in() / "20261128T020000").mkdir()  # it has not ended
    assert flakes.main(["runs"]) == 0
    totals, *others = capsys.readouterr().out.splitlines()
    assert totals == (
        "2026-11-28T01:02  c0ffee  load 1.25  1.5 min  7 tests, 1 failed, 1 passed alone  "
        "(mixed 61 s, gate 20 s)"
    )
    assert others == ["    failed: a.py::test", "    passed alone: b.py::test"]
