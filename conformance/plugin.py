"""A pytest plug-in that writes each result when it is there, and skips tests that have one.

A part of a suite runs in one process. If that process dies, its results remain, and another process
continues after the test in which it died. The file is copied into a directory of its own, which is
all that the tests' environment gets of this project.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

#: Names the file of results: a JSON object a line.
VARIABLE = "SPS_CONFORMANCE_RESULTS"
#: Names the device that JAX's tests choose by; JAX 0.12 does not read it from the environment.
DEVICE_VARIABLE = "JAX_TEST_DUT"
#: Set where tests must not choose a platform themselves (`jax_platform_name`).
PROXY_VARIABLE = "SPS_CONFORMANCE_PROXY"
#: JAX's settings for the tests, as JSON: those that JAX does not read from the environment.
SETTINGS_VARIABLE = "SPS_CONFORMANCE_SETTINGS"


def read_results(path: Path) -> dict[str, dict[str, str]]:
    """Returns the state of each test: ``outcome`` (empty while it runs) and ``error``."""
    found: dict[str, dict[str, str]] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            result = json.loads(line)
            found[result.pop("test")] = result
    return found


def keep(path: Path, test: str, outcome: str, error: str = "") -> None:
    """Records the state of a test."""
    with path.open("a") as results:
        results.write(json.dumps({"test": test, "outcome": outcome, "error": error}) + "\n")


def read_collected(path: Path) -> tuple[str, ...]:
    """Returns all tests that there are to run, in order; none if none were looked for."""
    collected = path.with_suffix(".collected")
    return tuple(json.loads(collected.read_text())) if collected.exists() else ()


def choose(path: Path, only: Sequence[str], first: str) -> None:
    """Writes which tests are wanted: some (empty: all), and only from the first one on."""
    _choice(path).write_text(json.dumps({"only": list(only), "first": first}))


def backend(path: Path) -> Path:
    """Returns where the name of the tests' default backend is written."""
    return path.with_suffix(".backend")


def pytest_sessionstart() -> None:
    if settings := json.loads(os.environ.get(SETTINGS_VARIABLE, "{}")):
        # (Before there is any backend: the CPU's reads some of them once.)
        jax = importlib.import_module("jax")
        for name, value in settings.items():
            jax.config.update(name, value)
    if os.environ.get(DEVICE_VARIABLE):
        # JAX's tests choose parameters by it when they are imported; this module has the setting.
        importlib.import_module("jax._src.test_util")
        _choose_device()
    _let_the_proxy_be_the_default()


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.outcome == "failed":
        keep(_results(), report.nodeid, "failed", _error(report.longreprtext))


@pytest.hookimpl(trylast=True)  # after -k
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _let_the_proxy_be_the_default()
    if os.environ.get(DEVICE_VARIABLE):
        _choose_device()  # again: the tests have parsed their flags since
    results = _results()
    choice = json.loads(_choice(results).read_text())
    wanted = {item.nodeid: item for item in items}
    if first := choice["first"]:
        # (No test is left if there is none of this name, which counts as a broken run.)
        wanted = dict(itertools.dropwhile(lambda test: test[0] != first, wanted.items()))
    if only := set(choice["only"]):
        wanted = {test: item for test, item in wanted.items() if test in only}
    results.with_suffix(".collected").write_text(json.dumps(list(wanted)))
    known = read_results(results)
    items[:] = [item for test, item in wanted.items() if test not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    keep(_results(), item.nodeid, "")
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        # (A test that fails after its call has passed counts as failed.)
        error = _error(report.longreprtext) if report.outcome == "failed" else ""
        keep(_results(), report.nodeid, report.outcome, error)


def pytest_sessionfinish() -> None:
    if jax := sys.modules.get("jax"):
        backend(_results()).write_text(jax.default_backend())


def _choose_device() -> None:
    sys.modules["jax"].config.update(DEVICE_VARIABLE.lower(), os.environ[DEVICE_VARIABLE])


def _let_the_proxy_be_the_default() -> None:
    if os.environ.get(PROXY_VARIABLE) and (jax := sys.modules.get("jax")):
        jax.config.update("jax_platform_name", "")


def _error(text: str) -> str:
    lines = text.splitlines()
    raised = [line[2:].strip() for line in lines if line.startswith("E ")]
    return " ".join(raised or lines[-1:])[:300]


def _choice(path: Path) -> Path:
    return path.with_suffix(".choice")


def _results() -> Path:
    return Path(os.environ[VARIABLE])
