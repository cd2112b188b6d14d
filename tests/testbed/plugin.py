"""The testbed as fixtures: one control plane a run of pytest, a namespace a test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

from shared_pathways_service.settings import Settings
from shared_pathways_service.testing.testbed import CannotBuild, Namespace, Testbed, new_namespace
from shared_pathways_service.testing.testbed.description import Description
from shared_pathways_service.testing.testbed.handle import launch

#: Before tests get a cache directory of their own.
_CACHE_DIR = Settings.load().cache_dir


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Testbed:
    """The run's testbed: whoever needs it first starts it, and it ends with the run."""
    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp()
    directory = (base.parent if is_worker else base) / "testbed"
    # The process that lives as long as the run.
    owner = os.getppid() if is_worker else os.getpid()
    with filelock.FileLock(directory.with_suffix(".lock")):
        if Description.read(directory) is None:
            _start(directory, owner)
    return Testbed.attach(directory)


def _start(directory: Path, owner: int) -> None:
    directory.mkdir()
    try:
        launch(directory, cache_dir=_CACHE_DIR, parent_pid=owner, report=_say)
    except CannotBuild as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"NO TESTBED: {error}")


def _say(line: str) -> None:
    os.write(2, f"testbed: {line}\n".encode())


@pytest.fixture
def namespace(testbed: Testbed) -> Iterator[Namespace]:
    """A namespace of the test's own."""
    with new_namespace(testbed) as made:
        yield made
