"""A plug-in of pytest that keeps each result as it comes, and passes over those that it has.

JAX's tests run in one process a file; where that process dies, the results until then are kept, and
another one goes on behind the test that it died in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Names the file of results: a JSON object a line.
VARIABLE = "SPS_CONFORMANCE_RESULTS"


def read_results(path: Path) -> dict[str, dict[str, str]]:
    """Returns what is known of each test: ``outcome`` (empty while it runs) and ``error``."""
    found: dict[str, dict[str, str]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            result = json.loads(line)
            found[result.pop("test")] = result
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known = read_results(Path(os.environ[VARIABLE]))
    items[:] = [item for item in items if _name(item.nodeid) not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _keep(item.nodeid, "", "")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        # (What fails after its call passed has failed.)
        lines = report.longreprtext.splitlines() if report.outcome == "failed" else []
        raised = [line[2:].strip() for line in lines if line.startswith("E ")]
        _keep(report.nodeid, report.outcome, " ".join(raised)[:300])


def _name(nodeid: str) -> str:
    return ".".join(nodeid.split("::")[1:])


def _keep(nodeid: str, outcome: str, error: str) -> None:
    with Path(os.environ[VARIABLE]).open("a") as results:
        results.write(
            json.dumps({"test": _name(nodeid), "outcome": outcome, "error": error}) + "\n"
        )
