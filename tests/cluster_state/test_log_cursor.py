from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.cluster_state.log_cursor import LogCursor


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, int, str]]:
    """Lines as (second, nanosecond, text), some of them at the very same time."""
    moments = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
    return [(s, n, f"line {i}") for i, (s, n) in enumerate(sorted(moments))]


def shown(line: tuple[int, int, str]) -> str:
    second, nano, text = line
    # As Go writes it: without zeros at the end, and without a fraction that is none.
    fraction = f"{nano:09d}".rstrip("0")
    return f"2026-01-02T03:04:{second:02d}{'.' + fraction if fraction else ''}Z {text}"


@given(log=logs(), breaks=st.lists(st.integers(0, 20), max_size=5))
def test_each_line_is_passed_once_however_often_the_stream_breaks(
    log: list[tuple[int, int, str]], breaks: list[int]
) -> None:
    cursor = LogCursor()
    passed: list[str] = []
    for end in [*breaks, len(log)]:
        cursor.restart()
        # The API server's times are whole seconds when it is asked to begin somewhere.
        since = int(cursor.since[17:19]) if cursor.since else 0
        stream = [line for line in log if line[0] >= since]
        # A later stream has all that an earlier one had.
        passed += [t for line in stream[:end] if (t := cursor.take(shown(line))) is not None]
    assert passed == [text for _, _, text in log][: len(passed)]
    assert len(passed) == len(log)


def test_the_next_stream_begins_where_the_last_ended() -> None:
    cursor = LogCursor()
    assert cursor.since == ""
    cursor.take("2026-01-02T03:04:05.5Z x")
    assert cursor.since == "2026-01-02T03:04:05.5Z"


def test_times_of_other_zones_and_lengths_are_compared_as_times() -> None:
    cursor = LogCursor()
    assert cursor.take("2026-01-02T03:04:05.5Z a") == "a"
    cursor.restart()
    assert cursor.take("2026-01-02T04:04:05.500000000+01:00 a") is None
    assert cursor.take("2026-01-02T04:04:05.500000001+01:00 b") == "b"
    assert cursor.take("2026-01-02T03:04:05.4Z old") is None


def test_a_line_without_a_time_is_passed() -> None:
    cursor = LogCursor()
    for line in ("unable to retrieve container logs", "2026-13-45T99:99:99Z x"):
        assert cursor.take(line) == line
