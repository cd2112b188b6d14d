"""Draws a run with characters: the number of slices over time, and marks of events."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Final

from shared_pathways_service.elastic.accounting.goodput import Report
from shared_pathways_service.elastic.accounting.history import Sight

__all__ = ["Row", "RowKind", "draw", "duration_text"]

#: Columns to the left of the drawing.
_LABEL: Final = 12
_NARROWEST: Final = 32
#: Rows for the number of slices.
_HIGHEST: Final = 10
#: Marks by number of events in a column; "+" for more.
_MARKS: Final = " x23456789"


class RowKind(enum.StrEnum):
    """The kind of a row, by which the caller can choose a colour."""

    SLICES = "slices"
    MARKS = "marks"
    AXIS = "axis"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the drawing; `sight` is the kind of its marks."""

    kind: RowKind
    label: str
    text: str
    sight: Sight | None = None

    def __str__(self) -> str:
        return f"{self.label:>{_LABEL - 2}}  {self.text}".rstrip()


def draw(report: Report, width: int, *, full: str = "█") -> list[Row]:
    """Draws a run, with one column per equal part of its time.

    A column shows the fewest training slices in it, so that even short losses are visible, and for
    marks their number: ``x``, then 2 to 9, then ``+``.
    """
    columns = max(width, _NARROWEST) - _LABEL
    fewest = _fewest(report, columns)
    top = max(fewest)
    rows = [
        Row(
            RowKind.SLICES,
            f"slices {level}" if level == top else str(level),
            "".join(full if count >= level else " " for count in fewest),
        )
        for level in _levels(top)
    ]
    for sight in Sight:
        ats = [mark.at for mark in report.marks if mark.sight is sight]
        if ats:
            text = _marks(ats, report.wall_s, columns)
            rows.append(Row(RowKind.MARKS, sight.value, text, sight))
    rows.append(Row(RowKind.AXIS, "", _axis(report.wall_s, columns)))
    return rows


def duration_text(seconds: float) -> str:
    """Returns a duration for people: ``0.42 s``, ``12.3 s``, ``4 min 05 s``, ``3 h 07 min``."""
    if seconds < 9.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def _fewest(report: Report, columns: int) -> list[int]:
    """Returns the fewest training slices in each column."""
    fewest: list[int | None] = [None] * columns
    ends = [count.at for count in report.slice_counts[1:]]
    for count, end in zip(report.slice_counts, [*ends, report.wall_s], strict=True):
        if end <= count.at and len(report.slice_counts) > 1:
            continue
        first = _column(count.at, report.wall_s, columns)
        # A count that ends with a column does not belong to the next one.
        last = max(first, -(-end * columns // report.wall_s) - 1 if report.wall_s else columns - 1)
        for column in range(first, min(int(last), columns - 1) + 1):
            known = fewest[column]
            fewest[column] = count.count if known is None else min(known, count.count)
    return [count or 0 for count in fewest]


def _levels(top: int) -> list[int]:
    """Returns the numbers of slices that have a row, highest first."""
    rows = min(top, _HIGHEST)
    return [-(-top * row // rows) for row in range(rows, 0, -1)]


def _marks(ats: Iterable[float], wall_s: float, columns: int) -> str:
    numbers = [0] * columns
    for at in ats:
        numbers[_column(at, wall_s, columns)] += 1
    return "".join(_MARKS[number] if number < len(_MARKS) else "+" for number in numbers)


def _column(at: float, wall_s: float, columns: int) -> int:
    return min(int(at * columns / wall_s), columns - 1) if wall_s else 0


def _axis(wall_s: float, columns: int) -> str:
    """Returns the labels of begin, middle and end of the time, at their positions."""
    middle, last = duration_text(wall_s / 2), duration_text(wall_s)
    start = columns // 2 - len(middle) // 2
    end = columns - len(last)
    text = "0"
    if start + len(middle) < end:
        text = text.ljust(start) + middle
    return text.ljust(end) + last
