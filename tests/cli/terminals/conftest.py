"""Each test of this folder runs its programs twice: alone, and as `sps run` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.terminals.shells import Shell, make_programs, shell


@pytest.fixture(params=["alone", "under"])
def run(request: pytest.FixtureRequest) -> str:
    """What stands before a command in a shell's line."""
    return {"alone": "", "under": "under "}[request.param]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the programs."""
    return make_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture
def bash(programs: Path, tmp_path: Path) -> Iterator[Shell]:
    """An interactive bash in a terminal, in an empty directory."""
    with shell("bash", programs, tmp_path) as started:
        yield started


@pytest.fixture(params=["bash", "dash"])
def any_shell(request: pytest.FixtureRequest, programs: Path, tmp_path: Path) -> Iterator[Shell]:
    """Each interactive shell that is tested, in a terminal, in an empty directory."""
    with shell(request.param, programs, tmp_path) as started:
        yield started
