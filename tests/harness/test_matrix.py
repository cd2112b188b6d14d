"""The README's commands in fresh clones: the rows, their steps, and what a failure does."""

from __future__ import annotations

import os
import sys

import pytest

from harness import matrix
from harness.processes import REPOSITORY

USERS = ["root", "ordinary"] if os.geteuid() == 0 else ["the user of this run"]


def test_each_python_has_a_row_for_each_user() -> None:
    rows = matrix.rows_of(["/usr/bin/python3", "/opt/bin/python3"], oldest_only=False)
    assert rows == [
        matrix.Row("/usr/bin/python3", USERS[0], "bare"),
        *(
            matrix.Row(python, user)
            for python in ("/usr/bin/python3", "/opt/bin/python3")
            for user in USERS
        ),
    ]
    oldest = matrix.rows_of(["/usr/bin/python3", "/opt/bin/python3"], oldest_only=True)
    assert oldest == [matrix.Row("/usr/bin/python3", user) for user in USERS]


def test_a_row_runs_both_commands_of_the_readme() -> None:
    assert matrix.steps_of(["--unit"])["tests"] == ["./scripts/test", "--unit"]
    assert matrix.steps_of([])["tests"] == ["./scripts/test"]
    assert list(matrix.steps_of(None)) == ["demo", "demo at a terminal"]


def test_steps_run_in_a_clone_with_an_empty_home(capsys: pytest.CaptureFixture[str]) -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("needs a clone")
    told = "ls -A $HOME; ls README.md; echo $SPS_ENVIRONMENT; python3 -V; exit 3"
    steps = {"first": ["true"], "second": ["sh", "-c", told]}
    result = matrix.run(matrix.Row(sys.executable, "the user of this run"), steps)
    assert result.steps == {"first": "passed", "second": "exit code 3"}
    # An empty home, no variable of this environment, and what failed is shown.
    assert capsys.readouterr().out == f"README.md\n\nPython {result.python}\n"
    [header, row] = matrix.table([result]).splitlines()
    assert header.startswith("Python")
    assert row.startswith(result.python)
    assert "passed, 0 s" in row
    assert "exit code 3, " in row


def test_a_step_that_fails_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["matrix", "--python", sys.executable])
    for outcome, code in (("passed", 0), ("exit code 2", 1)):

        def run(row: matrix.Row, _: object, outcome: str = outcome) -> matrix.Result:
            steps = {"demo": "passed", "tests": outcome}
            return matrix.Result("3.13", row.user, "", "", steps, dict.fromkeys(steps, 1.0))

        monkeypatch.setattr(matrix, "run", run)
        assert matrix.main() == code
