"""How many slices were held in each part of a window, by their owners: for charts."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ["MOST_PARTS", "OTHERS", "held_over_time"]

#: Parts of a window at most.
MOST_PARTS: Final = 500
#: Owners with a series of their own; the others share one.
_MOST_OWNERS: Final = 11
#: (No name of an owner has a line end.)
OTHERS: Final = "\n"


def held_over_time(
    holdings: Iterable[Mapping[str, Any]],
    *,
    by: str,
    since: float,
    until: float,
    parts: int,
) -> dict[str, Any]:
    """Returns the mean number of held slices in each part of a window, by owner.

    Args:
      holdings: Rows with ``start`` and ``end``, seconds since the epoch, and the field `by`.
      by: The owner: ``user``, ``team``, ``tenant`` or ``instance_type``.
      since: The begin of the window, seconds since the epoch.
      until: Its end, later than `since`.
      parts: The number of parts, up to `MOST_PARTS`.

    Returns:
      ``since``, ``until``, ``step_s``, and ``series``: numbers by owner, those who held most first.
      The owners after the eleventh are one series, `OTHERS`.
    """
    step = (until - since) / parts
    held: dict[str, list[float]] = defaultdict(lambda: [0.0] * parts)
    for row in holdings:
        start, end = max(since, row["start"]), min(until, row["end"])
        if end > start:
            _add(held[row[by] or ""], (start - since) / step, (end - since) / step)
    owners = sorted(held, key=lambda name: (-math.fsum(held[name]), name))
    series = {name: held[name] for name in owners[:_MOST_OWNERS]}
    if rest := owners[_MOST_OWNERS:]:
        series[OTHERS] = [
            math.fsum(part) for part in zip(*(held[name] for name in rest), strict=True)
        ]
    shown = {name: [round(value, 4) for value in values] for name, values in series.items()}
    return {"since": since, "until": until, "step_s": step, "series": shown}


def _add(values: list[float], start: float, end: float) -> None:
    """Adds a holding from `start` to `end`, both in parts."""
    first, last = int(start), min(len(values) - 1, int(end))
    for part in range(first, last + 1):
        values[part] += max(0.0, min(end, part + 1) - max(start, part))
