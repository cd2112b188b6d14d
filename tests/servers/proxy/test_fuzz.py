"""The short form of `benchmarks.fuzz`."""

from __future__ import annotations

import pytest

from benchmarks.fuzz import fuzz


@pytest.mark.race
def test_random_requests_and_bytes_hurt_nobody() -> None:
    found = fuzz(15.0, seed=20, tell=print)
    assert set(found["examples"]) == {"sequences", "mutated", "methods", "socket"}
    assert found["witness"]["checked"] > 0
