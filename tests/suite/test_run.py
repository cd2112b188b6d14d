"""A whole run: its phases, what fails once and what fails again, and its last line."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.suite import __main__ as suite_command
from harness.suite.phases import (
    Form,
    PlannedTest,
    chosen_by,
    files_form,
    form_of,
    long_form,
    unit_form,
)
from harness.suite.records import read_record
from harness.suite.run import problems
from tests.suite.small_suites import run_suite

#: Passes only in the runs after the first.
FAILS_ONCE = """
    from pathlib import Path

    import pytest

    def is_first(name):
        mark = Path(name)
        was_there = mark.exists()
        mark.touch()
        return not was_there
"""
PASSING = {
    "test_pure": """
        import pytest

        def test_one(): pass

        def test_two(): pass

        @pytest.mark.parametrize("number", range(3))
        def test_of_what_is_missing(number):
            pytest.skip("no such machine")
    """,
    "test_programs": """
        import os
        import subprocess

        import pytest

        def note(name):
            with open("order", "a") as file:
                file.write(f"{name}\\n")

        def test_program():
            assert subprocess.run(["true"]).returncode == 0
            note("program")

        @pytest.mark.heavy
        def test_of_the_machine():
            assert os.environ["PYTEST_XDIST_WORKER_COUNT"] == "1"
            note("heavy")
    """,
}


def test_phases_and_totals(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, PASSING)
    assert ended.code == 0, ended.output
    assert ended.last_line == "4 passed, 0 failed, 3 skipped"
    assert (tmp_path / "order").read_text().split() == ["program", "heavy"]
    lines = ended.output.splitlines()
    assert lines.count("        3  no such machine") == 1
    [results] = (tmp_path / "cache" / "test-runs").iterdir()
    assert {path.name for path in results.glob("*.xml")} == {"mixed.xml", "heavy.xml"}
    kept = json.loads((results / "run.json").read_text())
    assert [phase["name"] for phase in kept["phases"]] == ["mixed", "heavy"]
    assert [phase["tests"] for phase in kept["phases"]] == [6, 1]
    assert kept["folders"]["tests"]["tests"] == 7
    assert not kept["flaky"] + kept["failed"]
    assert not ended.kept


def test_what_a_run_leaves_out_is_said(tmp_path: Path) -> None:
    modules = {
        **PASSING,
        "test_long": "import pytest\n\n@pytest.mark.long\ndef test_of_hours(): pass\n",
        "test_all": """
            import pytest

            @pytest.mark.parametrize("kind", ["a", pytest.param("b", marks=pytest.mark.thorough)])
            def test_kinds(kind):
                assert kind == "a"
        """,
    }
    ended = run_suite(tmp_path, modules)
    assert ended.last_line == "5 passed, 0 failed, 3 skipped"
    lines = ended.output.splitlines()
    first = lines.index("== left out") + 1
    assert [line.split(maxsplit=1) for line in lines[first : first + 2]] == [
        ["1", "of the layer long: ./scripts/test --all"],
        ["1", "thorough: ./scripts/test --long"],
    ]
    assert "== left out" not in run_suite(tmp_path / "b", PASSING).output


def test_flakes_are_kept_and_do_not_fail_the_run(tmp_path: Path) -> None:
    source = (
        FAILS_ONCE
        + """
    def test_fails_once(record_property):
        record_property("seed", 1234)
        print("what it printed")
        assert not is_first("failed")

    def test_crashes_once():
        if is_first("crashed"):
            import os
            os._exit(3)

    @pytest.fixture
    def broken_once():
        yield
        assert not is_first("torn down"), "its end"

    def test_of_a_fixture(broken_once): pass
    """
    )
    ended = run_suite(tmp_path, {"test_flaky": source})
    assert ended.code == 0, ended.output
    assert ended.last_line == "3 passed, 0 failed, 0 skipped"
    assert "FLAKY: 3 failed once, and passed alone" in ended.output
    entries = {entry["test"]: entry for entry in map(_read, ended.kept)}
    failed = entries["tests/test_flaky.py::test_fails_once"]
    [failure] = failed["failures"]
    assert 'assert not is_first("failed")' in failure["text"]
    assert "what it printed" in failure["output"]
    assert failed["seeds"] == {"seed": 1234}
    assert len(failed["alone_s"]) == 5
    assert len(failed["load"]) == 3
    assert {"jax", "grpcio"} <= failed["versions"].keys()
    [crash] = entries["tests/test_flaky.py::test_crashes_once"]["failures"]
    assert "crashed while running" in crash["text"]
    [end] = entries["tests/test_flaky.py::test_of_a_fixture"]["failures"]
    assert end["when"] == "teardown"


@pytest.mark.thorough
def test_a_flake_of_chosen_files_does_not_fail_the_run(tmp_path: Path) -> None:
    """So that the releases of JAX that `scripts/compat` runs have reruns too."""
    source = FAILS_ONCE + "\n    def test_fails_once(): assert not is_first('failed')\n"
    modules = {"chosen/test_flaky": source, "test_other": "def test_that_fails(): assert False\n"}
    ended = run_suite(tmp_path, modules, options=["--files", "tests/chosen"])
    assert ended.code == 0, ended.output
    assert ended.last_line == "1 passed, 0 failed, 0 skipped"
    assert len(ended.kept) == 1


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, PASSING, options=["--files", "tests/absent"])
    assert ended.code == 2
    assert "tests/absent" in ended.last_line


def test_a_failure_in_one_of_the_reruns_fails_the_run(tmp_path: Path) -> None:
    source = (
        FAILS_ONCE
        + """
    @pytest.mark.parametrize("name", ["a b", "c::d"])
    def test_fails_twice(name):
        runs = Path(name)
        runs.write_text((runs.read_text() if runs.exists() else "") + ".")
        assert runs.read_text() not in (".", "...")

    def test_passes(): pass
    """
    )
    ended = run_suite(tmp_path, {"test_failing": source})
    assert ended.code == 1
    assert ended.last_line == "1 passed, 2 failed, 0 skipped"
    for name in ("a b", "c::d"):
        assert f"FAILED tests/test_failing.py::test_fails_twice[{name}]" in ended.output
        assert (tmp_path / name).read_text() == "..."  # and no run after that
    assert not ended.kept


@pytest.mark.thorough
def test_what_is_no_failed_test_fails_the_run(tmp_path: Path) -> None:
    ends_pytest = """
        import os, signal

        def test_ends_its_parent():
            os.kill(os.getppid(), signal.SIGKILL)

        def test_another(): pass
    """
    ended = run_suite(tmp_path, {"test_ends_pytest": ends_pytest})
    assert ended.code == 1
    assert "FAILED mixed: pytest ended with -9" in ended.output
    assert "tests did not run" in ended.output


@pytest.mark.thorough
def test_a_test_in_two_phases_fails_the_run(tmp_path: Path) -> None:
    source = (
        FAILS_ONCE
        + """
    @pytest.mark.unit
    class TestOfTwoLayers:
        def test_pure(self): pass

        @pytest.mark.long
        def test_fails_in_one_phase(self):
            assert not is_first("failed")
    """
    )
    ended = run_suite(tmp_path, {"test_twice": source})
    assert ended.code == 1
    assert "FAILED mixed: 1 tests of other phases ran" in ended.output


def test_a_record_that_is_cut_off_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "record"
    report = {"kind": "report", "test": "a", "when": "teardown", "outcome": "passed", "seconds": 1}
    path.write_text(json.dumps(report) + '\n{"kind": "rep')
    record = read_record(path)
    assert list(record.results) == ["a"]
    assert problems("unit", ["a"], -9, record) == ["unit: pytest ended with -9"]
    assert problems("unit", ["a"], 0, record) == ["unit: pytest ended with 0"]


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_has_failed(tmp_path: Path, by: signal.Signals) -> None:
    mark = tmp_path / "mark"
    waits = f"""
        import time
        from pathlib import Path

        def test_waits():
            Path({str(mark)!r}).touch()
            time.sleep(600)
    """
    ended = run_suite(tmp_path, {"test_waits": waits}, interrupt_at=mark, by=by)
    assert ended.code == 1
    assert "FAILED the run was interrupted" in ended.output
    assert ended.last_line == "0 passed, 1 failed, 0 skipped"


@pytest.mark.thorough
def test_a_module_that_cannot_be_collected_fails_the_run(tmp_path: Path) -> None:
    ended = run_suite(tmp_path, {"test_good": "def test_good(): pass", "test_bad": "import nosuch"})
    assert ended.code == 1
    assert "No module named 'nosuch'" in ended.output
    assert ended.last_line == "0 passed, 1 failed, 0 skipped"


@pytest.mark.thorough
def test_many_failures_are_not_run_again(tmp_path: Path) -> None:
    source = """
        import pytest

        @pytest.mark.parametrize("number", range(16))
        def test_fails(number):
            with open("runs", "a") as file:
                file.write("x")
            assert False
    """
    ended = run_suite(tmp_path, {"test_failing": source})
    assert ended.code == 1
    assert ended.last_line == "0 passed, 16 failed, 0 skipped"
    assert (tmp_path / "runs").read_text() == "x" * 16


def _read(path: Path) -> dict[str, Any]:
    entry = yaml.safe_load(path.read_text())
    assert isinstance(entry, dict)
    return entry


def test_chosen_files_have_as_many_workers_as_wanted() -> None:
    files, heavy = files_form(["tests/api"], cores=2).phases
    assert (files.workers, heavy.workers) == (4, 1)
    assert files_form(["tests/api"], cores=2, workers=1).phases[0].workers == 1


def test_what_cleans_up_is_interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = list[str]()
    monkeypatch.setattr(suite_command, "interrupt_all", lambda: interrupted.append("all"))
    ending = suite_command.Ending()
    with pytest.raises(KeyboardInterrupt):
        ending.on_terminate()
    ending.on_terminate()
    assert interrupted == ["all"]
    # (Ctrl-C reaches all of them.)
    ending = suite_command.Ending()
    with pytest.raises(KeyboardInterrupt):
        ending.on_interrupt()
    ending.on_terminate()
    assert interrupted == ["all"]


def test_phases_of_each_form() -> None:
    plan = {
        "a": PlannedTest(layer="unit", heavy=False, is_property=True, group="m"),
        "b": PlannedTest(layer="unit", heavy=False, is_property=False, group="m"),
        "c": PlannedTest(layer="local", heavy=True, is_property=False, group="m"),
        "d": PlannedTest(layer="testbed", heavy=False, is_property=False, group="m"),
        "e": PlannedTest(layer="long", heavy=True, is_property=False, group="m"),
        "f": PlannedTest(layer="testbed", heavy=False, is_property=False, group="m", thorough=True),
        "g": PlannedTest(layer="unit", heavy=False, is_property=True, group="m", thorough=True),
    }

    def names(form: Form) -> dict[str, list[str]]:
        return {phase.name: chosen_by(phase, plan) for phase in form.phases}

    assert names(form_of(everything=False, cores=2)) == {
        "mixed": ["a", "b"],
        "heavy": ["c"],
    }
    everything = names(form_of(everything=True, cores=2))
    assert sorted(test for tests in everything.values() for test in tests) == [*"abcde"]
    assert everything["heavy"] == ["c", "e"]
    assert names(unit_form(cores=2)) == {"unit": ["a", "b"]}
    assert names(files_form(["tests/x"], cores=2)) == {
        "files": ["a", "b", "d", "f", "g"],
        "heavy": ["c", "e"],
    }
    long = long_form(seed=7, cores=2)
    assert names(long) == {
        "thorough": ["f"],
        "properties": ["a", "g"],
        "long": [],
        "heavy": ["e"],
    }
    assert "--hypothesis-seed=7" in long.phases[1].options


def test_what_waits_runs_beside_what_computes() -> None:
    def tests(layer: str, *groups: str) -> dict[str, PlannedTest]:
        return {
            f"{group}.py::test_{number}": PlannedTest(
                layer=layer, heavy=False, is_property=False, group=group
            )
            for number in range(2)
            for group in groups
        }

    phase = form_of(everything=True, cores=2).phases[0]
    chosen = chosen_by(phase, {**tests("unit", *"abcd"), **tests("testbed", *"xy")})
    groups = ["a", "x", "b", "c", "y", "d"]
    assert chosen == [f"{group}.py::test_{number}" for group in groups for number in range(2)]


@pytest.mark.thorough
def test_tests_with_a_fixture_of_their_folder_run_together(tmp_path: Path) -> None:
    conftest = """
        import pytest

        @pytest.fixture(scope="package")
        def service(): pass
    """
    uses = "def test_it(service): pass"
    alone = "def test_it(): pass"
    modules = {
        "conftest": conftest,
        "test_a": uses,
        "test_b": alone,
        "test_c": f"import pytest, subprocess\n@pytest.mark.local\n{alone}",
        "test_d": uses,
    }
    ended = run_suite(tmp_path, {f"folder/{name}": source for name, source in modules.items()})
    assert ended.code == 0, ended.output
    assert ended.last_line == "4 passed, 0 failed, 0 skipped"
    plan = json.loads(next((tmp_path / "cache" / "test-runs").glob("*/plan.json")).read_text())
    assert [planned["group"].rpartition("/")[2] for planned in plan.values()] == [
        "folder",
        "test_b.py",
        "test_c.py",
        "folder",
    ]
