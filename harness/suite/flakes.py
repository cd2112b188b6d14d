"""Flakes: tests that failed once and passed alone. Their failures are kept, and filed.

scripts/flakes         lists the failures that are kept in the user's cache directory
scripts/flakes file    moves them to tests/flakes/, one file per test, for an explanation or a fix
scripts/flakes runs    lists the runs that are kept, with what failed in each
"""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from harness.results import surroundings
from harness.suite.records import Failure, TestResult, file_name_of
from harness.suite.runs import run_lines, runs_in
from shared_pathways_service.runtime.settings import Settings

__all__ = ["FILED", "PACKAGES", "Flake", "file_kept", "keep", "kept_flakes", "kept_in"]

#: One file per test, in the repository.
FILED = Path("tests/flakes")
#: Lines of a failure that a filed entry has, from its end.
_LINES = 60
#: Whose versions are kept.
PACKAGES = ("jax", "jaxlib", "grpcio", "pytest", "pytest-xdist", "hypothesis")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flake:
    """A test that failed, and then passed each time when it ran alone.

    Attributes:
      result: The failure.
      phase: The part of the run in which it failed.
      workers: Processes that ran tests at once.
      alone_s: Seconds of each run alone.
    """

    result: TestResult
    phase: str
    workers: int
    alone_s: Sequence[float]


def kept_in() -> Path:
    """Returns the directory in which failures are kept; it need not exist."""
    return Settings.load().cache_dir / "flakes"


def keep(flake: Flake) -> Path:
    """Writes a failure with all that is known of it; returns the file."""
    first = flake.result.failures[0]
    entry = {
        "test": flake.result.test,
        "failed_at": first.at,
        "phase": flake.phase,
        "workers": flake.workers,
        "load": list(first.load),
        "cpu_pressure": first.cpu_pressure,
        "seeds": dict(first.seeds),
        "alone_s": [round(seconds, 1) for seconds in flake.alone_s],
        **surroundings(PACKAGES),
        "failures": [
            {"when": failure.when, "text": failure.text, "output": _output(failure)}
            for failure in flake.result.failures
        ],
    }
    directory = kept_in()
    directory.mkdir(parents=True, exist_ok=True)
    moment = first.at.partition("+")[0].replace(":", "")
    path = directory / f"{file_name_of(flake.result.test)}.{moment}.yaml"
    path.write_text(_dump(entry))
    return path


def kept_flakes() -> dict[Path, dict[str, Any]]:
    """Returns the entries that are kept, by file."""
    return {path: yaml.safe_load(path.read_text()) for path in sorted(kept_in().glob("*.yaml"))}


def file_kept(directory: Path) -> list[Path]:
    """Moves what is kept into a directory, one file per test; returns the files written."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for path, entry in kept_flakes().items():
        filed = directory / f"{file_name_of(entry['test'])}.yaml"
        if filed.exists():
            known = yaml.safe_load(filed.read_text())
            known["failed_at"] = sorted({*known["failed_at"], entry["failed_at"]})
        else:
            known = _as_filed(entry)
        filed.write_text(_dump(known))
        path.unlink()
        written.append(filed)
    return list(dict.fromkeys(written))


def _as_filed(entry: dict[str, Any]) -> dict[str, Any]:
    failure = entry["failures"][0]
    names = ("phase", "workers", "load", "cpu_pressure", "seeds", "commit", "changed", "versions")
    return {
        "test": entry["test"],
        "filed": datetime.datetime.now(datetime.UTC).date(),
        "failed_at": [entry["failed_at"]],
        "explanation": "",
        **{name: entry[name] for name in names if name in entry},
        "failure": "\n".join(failure["text"].splitlines()[-_LINES:]),
        "output": "\n".join(failure["output"].splitlines()[-_LINES:]),
    }


def _output(failure: Failure) -> str:
    return "\n".join(f"--- {heading}\n{text}" for heading, text in failure.output)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # (YAML has no blocks with blanks at the end of a line.)
    if "\n" not in text:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text)
    lines = "\n".join(line.rstrip() for line in text.expandtabs().splitlines())
    return dumper.represent_scalar("tag:yaml.org,2002:str", lines, style="|")


_Dumper.add_representer(str, _text)


def _dump(entry: dict[str, Any]) -> str:
    return yaml.dump(entry, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def main(arguments: Sequence[str]) -> int:
    """Runs `scripts/flakes`."""
    if list(arguments) == ["file"]:
        for path in file_kept(FILED):
            print(f"{path}: explain or fix it within 14 days")
    elif not arguments:
        for path, entry in kept_flakes().items():
            print(f"{entry['failed_at']}  load {entry['load'][0]:<5}  {entry['test']}\n    {path}")
        if not kept_flakes():
            print("no failure is kept")
    elif list(arguments) == ["runs"]:
        print(*run_lines(runs_in()), sep="\n")
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
