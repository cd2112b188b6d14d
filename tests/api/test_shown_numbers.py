"""Numbers as people read them."""

from __future__ import annotations

import pytest

from shared_pathways_service.api.shown_numbers import shown_digits, shown_seconds


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (1.0, "1"), (12.345, "12.3"), (123_456, "123000"), (0.0000123, "0.0000123")],
)
def test_three_digits_without_an_exponent(number: float, shown: str) -> None:
    assert shown_digits(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.0, "0 ms"), (0.0125, "12.5 ms"), (0.99999, "1 s"), (1.5, "1.5 s"), (1234.5, "1230 s")],
)
def test_milliseconds_below_a_second(seconds: float, shown: str) -> None:
    assert shown_seconds(seconds) == shown
