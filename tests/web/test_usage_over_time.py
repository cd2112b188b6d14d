"""Held slices over time, by owner."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.web.usage_over_time import OTHERS, held_over_time
from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]


def holding(start: float, end: float, user: str | None = "ada") -> dict[str, Any]:
    return {"start": start, "end": end, "user": user}


def of(*holdings: dict[str, Any], parts: int = 4) -> dict[str, list[float]]:
    """The series of a window from 100 to 140."""
    found = held_over_time(holdings, by="user", since=100.0, until=140.0, parts=parts)
    assert found["step_s"] == 40.0 / parts
    series: dict[str, list[float]] = found["series"]
    return series


def test_each_part_has_the_mean_number_of_held_slices() -> None:
    assert of(holding(105, 125)) == {"ada": [0.5, 1.0, 0.5, 0.0]}
    assert of(holding(0, 1000), holding(112, 114)) == {"ada": [1.0, 1.2, 1.0, 1.0]}
    # What ended before the window, or at its end, takes no part.
    assert of(holding(0, 100), holding(140, 150)) == {}


def test_who_held_most_comes_first_and_the_twelfth_is_one_of_the_others() -> None:
    users = [f"u{number:02}" for number in range(14)]
    series = of(*(holding(100, 101 + number, user) for number, user in enumerate(users)))
    assert list(series) == [*reversed(users[3:]), OTHERS]
    assert math.isclose(series[OTHERS][0], 0.6)
    assert list(of(holding(100, 140, None))) == [""]


moments = st.floats(0, 300, allow_nan=False)


@given(st.lists(st.tuples(moments, moments, st.sampled_from("abcdefghijklmn"))), st.integers(1, 50))
def test_no_time_is_lost(spans: list[tuple[float, float, str]], parts: int) -> None:
    series = of(*(holding(*span) for span in spans), parts=parts)
    held = sum(max(0.0, min(end, 140.0) - max(start, 100.0)) for start, end, _ in spans)
    counted = sum(map(sum, series.values())) * 40.0 / parts
    assert math.isclose(counted, held, abs_tol=1e-3 * (1 + len(series) * parts))
