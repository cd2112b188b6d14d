"""Runs the demo and tests in fresh clones, on several Pythons and as several users.

`scripts/matrix` finds the Pythons. Each row has a clone, an empty HOME, and a PATH with one Python
alone; nothing of it is kept. Uses the standard library only.
"""

# ruff: noqa: T201 - it is a program
from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.results import ROOT, measured, write_result

#: Variables that pip, TLS and numpy need on some machines.
_KEPT = ("PIP_", "SSL_", "OPENBLAS_", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
#: Commands that other systems do not have, or that would reveal other Pythons.
_NOT_EVERYWHERE = ("flock", "nproc", "git", "curl", "pyenv", "lsb_release")
_NOBODY = 65534
_STEP_S = 3600


@dataclasses.dataclass(frozen=True)
class Row:
    """A Python, a user and surroundings.

    Attributes:
      python: The interpreter.
      user: ``root``, ``ordinary``, or the user who runs this.
      surroundings: ``bare``: without commands that not every system has.
    """

    python: str
    user: str
    surroundings: str = ""


@dataclasses.dataclass
class Result:
    """What became of a row: of each step ``passed``, or its exit code; and its seconds."""

    python: str
    user: str
    surroundings: str
    jax: str = ""
    steps: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)


def run(row: Row, steps: Mapping[str, Sequence[str]]) -> Result:
    """Runs the steps of a row in a clone of its own; prints the output of one that fails."""
    version = _output([row.python, "-c", "import platform; print(platform.python_version())"])
    result = Result(version, row.user, row.surroundings)
    with tempfile.TemporaryDirectory(prefix="sps-matrix-") as directory:
        scratch = Path(directory)
        clone, home = scratch / "clone", scratch / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        environment = {
            **{name: value for name, value in os.environ.items() if name.startswith(_KEPT)},
            "HOME": str(home),
            "PATH": _path(row, scratch),
        }
        prefix: list[str] = []
        if row.user == "ordinary":
            prefix = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
            subprocess.run(["chown", "-R", f"{_NOBODY}:{_NOBODY}", scratch], check=True)
        for name, command in steps.items():
            began = time.monotonic()
            result.steps[name] = _run_step([*prefix, *command], clone, environment)
            result.seconds[name] = round(time.monotonic() - began, 1)
        pythons = list(home.glob(".cache/*/venv-*/bin/python"))
        if pythons:
            told = "import importlib.metadata as m; print(m.version('jaxlib'))"
            result.jax = _output([str(pythons[0]), "-c", told])
    return result


def _run_step(command: Sequence[str], clone: Path, environment: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            command,
            check=False,
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_STEP_S,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {_STEP_S} s"
    # (What is kept of failures that did not come back goes with this row's HOME.)
    if done.returncode != 0 or " FLAKY: " in done.stdout:
        print("\n".join(done.stdout.splitlines()[-200:]), flush=True)
    return "passed" if done.returncode == 0 else f"exit code {done.returncode}"


def _path(row: Row, scratch: Path) -> str:
    """Returns a PATH with the system's commands and one Python."""
    python = Path(row.python)
    if row.surroundings == "bare":
        commands = scratch / "commands"
        commands.mkdir()
        for command in Path("/usr/bin").iterdir():
            if command.name not in _NOT_EVERYWHERE:
                (commands / command.name).symlink_to(command)
        return str(commands)
    if python.parent == Path("/usr/bin"):
        return "/usr/bin:/bin"
    if row.user == "ordinary":
        # (pyenv's may be in a directory of root.)
        prefix = Path(_output([row.python, "-c", "import sys; print(sys.base_prefix)"]))
        shutil.copytree(prefix, scratch / "python", symlinks=True)
        return f"{scratch / 'python/bin'}:/usr/bin:/bin"
    return f"{python.parent}:/usr/bin:/bin"


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def table(results: Sequence[Result]) -> str:
    """Returns the results as text."""
    rows: list[tuple[str, ...]] = [("Python", "JAX", "user", "demo", "demo at a terminal", "tests")]
    for result in results:
        user = " ".join([result.user, *([result.surroundings] if result.surroundings else [])])
        cells = [
            f"{outcome}, {result.seconds[step]:.0f} s" for step, outcome in result.steps.items()
        ]
        rows.append((result.python, result.jax, user, *cells, *[""] * (3 - len(cells))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def rows_of(pythons: Sequence[str], *, oldest_only: bool) -> list[Row]:
    """Returns the rows for the given interpreters, the oldest first."""
    users = ["root", "ordinary"] if os.geteuid() == 0 else ["the user of this run"]
    chosen = pythons[:1] if oldest_only else pythons
    rows = [Row(python, user) for python in chosen for user in users]
    if Path(pythons[0]).parent == Path("/usr/bin") and not oldest_only:
        rows.insert(0, Row(pythons[0], users[0], "bare"))
    return rows


def steps_of(tests: Sequence[str] | None) -> dict[str, Sequence[str]]:
    """Returns the commands of a row by their names.

    Args:
      tests: Arguments of `scripts/test`, which installs all that `[dev]` asks for; None: without.
    """
    demo = ["./scripts/demo"]
    steps: dict[str, Sequence[str]] = {
        "demo": demo,
        "demo at a terminal": ["script", "-qefc", shlex.join(demo), "/dev/null"],
    }
    if tests is not None:
        steps["tests"] = ["./scripts/test", *tests]
    return steps


@measured()
def main() -> int:
    """Runs the rows, prints their table, and fails if a step failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", action="append", required=True, help="an interpreter")
    parser.add_argument("--oldest", action="store_true", help="the oldest Python alone")
    parser.add_argument("--out", type=Path, help="where the results are kept, as JSON")
    parser.add_argument("--tests", default="--unit", help="arguments of scripts/test")
    given = parser.parse_args()
    results = []
    for row in rows_of(given.python, oldest_only=given.oldest):
        # (CI runs them as root as well, on the newest Python.)
        has_tests = row.user != "root" or not given.oldest
        steps = steps_of(shlex.split(given.tests) if has_tests else None)
        print(f"== {row.python}, {row.user} {row.surroundings}".rstrip(), flush=True)
        results.append(run(row, steps))
        print(table(results[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(results)}")
    write_result("matrix", [dataclasses.asdict(result) for result in results], given.out)
    return int(any(step != "passed" for result in results for step in result.steps.values()))


if __name__ == "__main__":
    sys.exit(main())
