"""The fake home that is shipped and the embedded home keep one contract."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.embedded import embedded
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.embedded.home import EmbeddedHome
from shared_pathways_service.testing.fake_home import FakeHome
from tests.agent.home_contract import HomeContract


@pytest.fixture(params=["fake", "embedded"])
def make(request: pytest.FixtureRequest, own_directories: Path) -> Iterator[type[Home]]:
    """Returns what makes homes of one service."""
    if request.param == "fake":
        directory = own_directories / "home"
        directory.mkdir()
        yield lambda: FakeHome(str(directory))  # type: ignore[misc]
        return
    with embedded(2):
        yield EmbeddedHome


class TestHomesOfOneMachine(HomeContract):
    pass
