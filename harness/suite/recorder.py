"""A pytest plug-in that writes what a run collects and reports to files, for `harness.suite`.

It does something only where ``SPS_SUITE_RECORD`` or ``SPS_SUITE_PLAN`` names a file: the record has
one JSON object per line, for each phase of a test, each error of a collection, and the end of the
run; the plan is one JSON object, with the layer of each test.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.layers.plugin import layer_of

__all__ = ["PLAN", "RECORD"]

RECORD = "SPS_SUITE_RECORD"
PLAN = "SPS_SUITE_PLAN"
_PRESSURE = Path("/proc/pressure/cpu")


def pytest_configure(config: pytest.Config) -> None:
    # Tests that run pytest are no part of the run.
    record, plan = os.environ.pop(RECORD, None), os.environ.pop(PLAN, None)
    if hasattr(config, "workerinput"):
        return
    if record is not None:
        config.pluginmanager.register(_Recorder(Path(record), config))
    if plan is not None:
        config.pluginmanager.register(_Planner(Path(plan)))


class _Planner:
    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        tests = {
            item.nodeid: {
                "layer": layer_of(item),
                "heavy": item.get_closest_marker("heavy") is not None,
                "is_property": item.get_closest_marker("hypothesis") is not None,
                "group": _group(item),
                "thorough": item.get_closest_marker("thorough") is not None,
            }
            for item in session.items
        }
        self._path.write_text(json.dumps(tests))


class _Recorder:
    def __init__(self, path: Path, config: pytest.Config) -> None:
        self._path = path
        self._seed = config.getoption("hypothesis_seed", None)

    def _write(self, **fields: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(kind="collection", test=report.nodeid, text=report.longreprtext)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        fields: dict[str, Any] = {}
        if report.failed:
            fields = {
                "text": report.longreprtext,
                "output": [list(section) for section in report.sections],
                "seeds": self._seeds(report),
                **_machine(),
            }
        elif report.skipped:
            # (The reason of an expected failure is not one of a skip.)
            is_expected = hasattr(report, "wasxfail")
            fields = {"is_expected": is_expected, "text": _reason(report)}
        self._write(
            kind="report",
            test=report.nodeid,
            when=report.when,
            outcome=report.outcome,
            seconds=report.duration,
            worker=getattr(report, "worker_id", ""),
            **fields,
        )

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write(kind="end", exit=int(exitstatus))

    def _seeds(self, report: pytest.TestReport) -> dict[str, Any]:
        """Returns the seeds that tests give with `record_property("seed...", value)`."""
        seeds = {name: value for name, value in report.user_properties if "seed" in name}
        return {**seeds, **({"hypothesis": self._seed} if self._seed is not None else {})}


def _group(item: pytest.Item) -> str:
    """Returns what has fixtures in common with a test: its module, or the folder of its fixture."""
    if isinstance(item, pytest.Function):
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            for definition in definitions:
                if definition.scope == "package":
                    return definition.baseid
    return item.nodeid.partition("::")[0]


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longreprtext)


def _machine() -> dict[str, Any]:
    """Returns how busy the machine is, at the moment at which a failure is reported."""
    pressure = ""
    with contextlib.suppress(OSError):
        pressure = _PRESSURE.read_text().splitlines()[0]
    return {
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "load": [round(load, 2) for load in os.getloadavg()],
        "cpu_pressure": pressure,
    }
