"""Lists the runs whose results are kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from shared_pathways_service.runtime.settings import Settings

__all__ = ["run_lines", "runs_in"]


def runs_in() -> Path:
    """Returns the directory of the results of runs; it need not exist."""
    return Settings.load().cache_dir / "test-runs"


def run_lines(directory: Path) -> Iterator[str]:
    """Yields a line for each run that came to its end, and one for each test that failed in it."""
    found = sorted(directory.glob("*/run.json"))
    for path in found:
        run = json.loads(path.read_text())
        seconds = run.get("seconds") or sum(phase["seconds"] for phase in run["phases"])
        tests = sum(phase.get("tests", 0) for phase in run["phases"])
        phases = ", ".join(f"{phase['name']} {phase['seconds']:.0f} s" for phase in run["phases"])
        yield (
            f"{run['date'][:16]}  {run['commit'][:8]}{' changed' if run.get('changed') else ''}  "
            f"load {run['load_at_start'][0]}  {seconds / 60:.1f} min  {tests} tests, "
            f"{len(run['failed'])} failed, {len(run['flaky'])} passed alone  ({phases})"
        )
        yield from (f"    failed: {test}" for test in run["failed"])
        yield from (f"    passed alone: {test}" for test in run["flaky"])
    if not found:
        yield "no run is kept"
