"""A run builds the control plane only if it is for tests of the testbed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY

#: Says what was collected and whether that begins a build, and runs no test.
PLUGIN = """
import pytest

def pytest_collection():
    from harness.testbed import programs
    programs.find_built = lambda _directory: None
    programs.find_or_build = lambda _directory, _say: print("BUILDS")

@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    from harness.layers.plugin import layer_of
    layers = {layer_of(item) for item in session.items}
    print("COLLECTED", "testbed" in layers, layers > {"testbed"})
    return True
"""
MANIFESTS = "tests/manifests"


@pytest.mark.parametrize(
    ("arguments", "has_others", "builds"),
    [
        ([MANIFESTS], True, False),
        ([f"{MANIFESTS}/test_on_a_real_server.py"], False, True),
        (["-m", "testbed", MANIFESTS], False, True),
    ],
    ids=["folder", "its tests", "layer"],
)
def test_a_folder_with_some_tests_of_the_testbed_builds_nothing(
    tmp_path: Path, arguments: list[str], *, has_others: bool, builds: bool
) -> None:
    (tmp_path / "collecting.py").write_text(PLUGIN)
    options = ["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-p", "collecting"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        # (In CI each run builds it.)
        env={**os.environ, "CI": "", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=deadline(120.0),
        check=False,
        cwd=REPOSITORY,
    )
    assert f"COLLECTED True {has_others}" in done.stdout, done.stdout + done.stderr
    assert ("BUILDS" in done.stdout) is builds
