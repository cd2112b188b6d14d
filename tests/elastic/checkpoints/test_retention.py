"""Which checkpoints stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.elastic.checkpoints.retention import expendable


@given(
    steps=st.sets(st.integers(0, 200)),
    keep=st.integers(1, 5),
    period=st.none() | st.integers(1, 50),
)
def test_the_newest_and_every_so_many_stay(steps: set[int], keep: int, period: int | None) -> None:
    gone = expendable(steps, keep=keep, keep_period=period)
    stay = steps - set(gone)
    assert set(gone) <= steps
    assert stay >= set(sorted(steps)[-keep:])
    if period is None:
        assert len(stay) == min(keep, len(steps))
    else:
        assert all(step % period for step in gone)
        assert all(step % period == 0 for step in sorted(stay)[:-keep])
    assert list(gone) == sorted(gone)


def test_an_example() -> None:
    assert expendable(range(100, 1000, 100), keep=3, keep_period=400) == (100, 200, 300, 500, 600)
