"""Events: what every sink gets."""

from __future__ import annotations

import pytest

from shared_pathways_service.events import rfc3339


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1e12, "9999-12-31T23:59:59.000Z"),
        (float("inf"), "9999-12-31T23:59:59.000Z"),
        (-1e12, "0001-01-01T00:00:00.000Z"),
    ],
)
def test_a_time_beyond_the_calendar_is_told_as_its_end(seconds: float, text: str) -> None:
    assert rfc3339(seconds) == text
