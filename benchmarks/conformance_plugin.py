"""A plug-in of pytest that keeps each result as it comes, and passes over those that it has.

JAX's tests run in one process a file; where that process dies, the results until then are kept, and
another one goes on behind the test that it died in.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Names the file of results: a JSON object a line.
VARIABLE = "SPS_CONFORMANCE_RESULTS"
#: Names the device that JAX's tests choose by; JAX 0.12 does not read it from the environment.
DEVICE_VARIABLE = "JAX_TEST_DUT"


def read_results(path: Path) -> dict[str, dict[str, str]]:
    """Returns what is known of each test: ``outcome`` (empty while it runs) and ``error``."""
    found: dict[str, dict[str, str]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            result = json.loads(line)
            found[result.pop("test")] = result
    return found


def keep(path: Path, test: str, outcome: str, error: str = "") -> None:
    """Adds what is known of a test now."""
    with path.open("a") as results:
        results.write(json.dumps({"test": test, "outcome": outcome, "error": error}) + "\n")


def read_collected(path: Path) -> tuple[str, ...]:
    """Returns all tests that there are to run, in order; none if none were looked for."""
    collected = path.with_suffix(".collected")
    return tuple(json.loads(collected.read_text())) if collected.exists() else ()


def choice(path: Path) -> Path:
    """Returns where it is written which tests are wanted; an empty list: all."""
    return path.with_suffix(".only")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if device := os.environ.get(DEVICE_VARIABLE):
        # (The setting is there once JAX's tests are imported, no sooner: they bind sys.stdout.)
        jax = importlib.import_module("jax")
        jax.config.update(DEVICE_VARIABLE.lower(), device)
    results = _results()
    only = set(json.loads(choice(results).read_text()))
    wanted = {_name(item.nodeid): item for item in items}
    if only:
        wanted = {test: item for test, item in wanted.items() if test in only}
    results.with_suffix(".collected").write_text(json.dumps(list(wanted)))
    known = read_results(results)
    items[:] = [item for test, item in wanted.items() if test not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    keep(_results(), _name(item.nodeid), "")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        # (What fails after its call passed has failed.)
        lines = report.longreprtext.splitlines() if report.outcome == "failed" else []
        raised = [line[2:].strip() for line in lines if line.startswith("E ")]
        keep(_results(), _name(report.nodeid), report.outcome, " ".join(raised)[:300])


def _results() -> Path:
    return Path(os.environ[VARIABLE])


def _name(nodeid: str) -> str:
    return ".".join(nodeid.split("::")[1:])
