"""What the agent's tests stand on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.support import Bench


@pytest.fixture
def bench(own_directories: Path) -> Bench:
    return Bench(own_directories)
