"""What the tests of forked processes share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.fork_server import client


@pytest.fixture
def is_forked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails the test if it starts no process by a fork."""
    forked = []
    start = client.ForkClient.start

    def noting(self: client.ForkClient, *arguments: Any) -> int | None:
        pid = start(self, *arguments)
        forked.append(pid is not None)
        return pid

    monkeypatch.setattr(client.ForkClient, "start", noting)
    yield
    assert any(forked)
