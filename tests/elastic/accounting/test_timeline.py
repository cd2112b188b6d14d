"""The picture of a run, and durations in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.accounting.goodput import Report, report_of
from shared_pathways_service.elastic.accounting.history import Sight
from shared_pathways_service.elastic.accounting.timeline import RowKind, draw, duration_text
from tests.elastic.accounting.telling import Process


def run() -> Process:
    """Twenty seconds: slice 1 is gone from 10 to 15; three checkpoints within the third second."""
    process = Process()
    process.start(0)
    process.tell(2.2, "checkpoint.saved", step=1)
    process.tell(2.4, "checkpoint.saved", step=2)
    process.tell(2.6, "checkpoint.saved", step=2)
    process.tell(10, "slice.down", slice=1)
    process.attempt(12, "0,2")
    process.tell(12.5, "elastic.restored", step=2, origin="checkpoint")
    process.tell(15, "elastic.retry", cause="scale_up")
    process.attempt(15, "0,1,2")
    process.tell(20, "elastic.run.done", outcome="done")
    return process


def reported(process: Process) -> Report:
    report = report_of(process.events)
    assert report is not None
    return report


def test_a_column_a_second() -> None:
    assert [str(row) for row in draw(reported(run()), 12 + 20, full="#")] == [
        "  slices 3  ##########     #####",
        "         2  ####################",
        "         1  ####################",
        "      lost            x",
        "  restored              x",
        "      grew                 x",
        "     saved    3",
        "            0      10.0 s 20.0 s",
    ]


def test_rows_are_distinguishable_when_printed() -> None:
    rows = draw(reported(run()), 80)
    assert [row.kind for row in rows[:4]] == [RowKind.SLICES] * 3 + [RowKind.MARKS]
    assert rows[-1].kind is RowKind.AXIS
    marked = [row.sight for row in rows if row.kind is RowKind.MARKS]
    assert marked == [Sight.LOST, Sight.RESTORED, Sight.GREW, Sight.SAVED]


def test_what_is_shorter_than_a_column_is_seen() -> None:
    process = Process()
    process.start(0)
    process.tell(500.0, "slice.down", slice=1)
    process.attempt(500.1, "0,1,2")
    process.tell(1000, "elastic.step", step=1)
    assert draw(reported(process), 12 + 20, full="#")[0].text == "########## #########"


def test_more_marks_than_a_digit_counts() -> None:
    process = Process()
    process.start(0)
    for number in range(10):
        process.tell(1 + number / 100, "checkpoint.saved", step=number)
    process.tell(100, "elastic.step", step=1)
    [saved] = [row for row in draw(reported(process), 40) if row.sight is Sight.SAVED]
    assert saved.text.strip() == "+"


def test_many_slices_have_ten_rows() -> None:
    process = Process()
    process.start(0, ",".join(map(str, range(64))))
    process.tell(10, "elastic.step", step=1)
    rows = [row for row in draw(reported(process), 40) if row.kind is RowKind.SLICES]
    assert [rows[0].label, rows[-1].label, len(rows)] == ["slices 64", "7", 10]


def test_a_run_of_no_time_is_drawn() -> None:
    process = Process()
    process.start(0, "0")
    rows = draw(reported(process), 40, full="#")
    assert [row.kind for row in rows] == [RowKind.SLICES, RowKind.AXIS]
    assert set(rows[0].text) == {"#"}


@given(
    width=st.integers(1, 300),
    times=st.lists(st.floats(0, 1e5), min_size=1, max_size=30).map(sorted),
    data=st.data(),
)
def test_no_line_is_wider_than_asked(width: int, times: list[float], data: st.DataObject) -> None:
    process = Process()
    process.start(times[0])
    kinds = st.sampled_from(["slice.down", "checkpoint.saved", "elastic.run.started"])
    for at in times:
        process.tell(at, data.draw(kinds), slice=data.draw(st.integers(0, 2)))
        if data.draw(st.booleans()):
            process.attempt(at, "0,1,2,3"[: 1 + 2 * data.draw(st.integers(0, 3))])
    report = reported(process)
    rows = draw(report, width)
    assert all(len(str(row)) <= max(width, 32) for row in rows)
    most = max(count.count for count in report.slice_counts)
    assert sum(row.kind is RowKind.SLICES for row in rows) <= most


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.4249, "0.42 s"),
        (9.994, "9.99 s"),
        (9.996, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (245.2, "4 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (11_220, "3 h 07 min"),
        (360_000, "100 h 00 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
