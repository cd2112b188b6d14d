"""Numbers as people read them: three digits, without exponents."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["shown_digits", "shown_seconds"]


def shown_digits(number: float) -> str:
    """Returns a finite number with three significant digits, e.g. ``1230`` or ``0.00123``."""
    return f"{Decimal(f'{number:.3g}'):f}"


def shown_seconds(seconds: float) -> str:
    """Returns a duration with three significant digits, in ms below 1 s, e.g. ``12.5 ms``."""
    # (0.9999 s is shown as 1 s, not as 1000 ms.)
    rounded = float(f"{seconds:.3g}")
    return f"{shown_digits(rounded)} s" if rounded >= 1 else f"{shown_digits(rounded * 1000)} ms"
