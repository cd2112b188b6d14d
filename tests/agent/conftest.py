"""What the agent's tests stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.monitoring import (
    MakeMonitoring,
    google_user,
    monitoring_at_hand,
)
from tests.agent.support import Bench


@pytest.fixture
def bench(own_directories: Path) -> Bench:
    return Bench(own_directories)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch, own_directories: Path) -> Iterator[Path]:
    with google_user(monkeypatch, own_directories) as path:
        yield path


@pytest.fixture
def monitoring(monkeypatch: pytest.MonkeyPatch, credentials: Path) -> Iterator[MakeMonitoring]:
    with monitoring_at_hand(monkeypatch) as use:
        yield use
