"""The offset of another clock is within its bound of the true one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.servers.proxy.profiles.clocks import Offset, Sample, offset_of

START_NS = 1_796_000_000_000_000_000


def sample(at_ns: int, there_ns: int, back_ns: int, offset_ns: int) -> Sample:
    """A round trip that begins at a time, with the times of both ways."""
    return Sample(at_ns, at_ns + there_ns + offset_ns, at_ns + there_ns + back_ns)


def test_the_shortest_round_trip_counts() -> None:
    samples = [sample(START_NS, 900, 100, 7_000), sample(START_NS, 20, 10, 7_000)]
    assert samples[1].offset_ns == 7_005
    assert offset_of(samples[1:]) == Offset(7_005, 15)
    # The first one, which is 395 ns away, would allow for 500 ns more.
    assert offset_of(samples) == Offset(7_005, 7_400 - 7_005 + 500)


@given(
    st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=8),
    st.integers(-(10**15), 10**15),
)
def test_a_steady_offset_is_within_the_bound(ways: list[tuple[int, int]], offset_ns: int) -> None:
    samples = [sample(START_NS + i * 10**9, *way, offset_ns) for i, way in enumerate(ways)]
    found = offset_of(samples)
    # (Half a nanosecond is rounded.)
    assert abs(found.offset_ns - offset_ns) <= found.error_ns + 1


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(-(10**7), 10**7))
def test_a_drift_is_within_the_bound_at_both_ends(first: int, last: int, drift_ns: int) -> None:
    samples = [sample(START_NS, first, 0, 0), sample(START_NS + 10**10, 0, last, drift_ns)]
    found = offset_of(samples)
    for true_ns in (0, drift_ns):
        assert abs(found.offset_ns - true_ns) <= found.error_ns + 1


def test_a_clock_that_was_set_back_has_no_negative_round_trip() -> None:
    found = offset_of([Sample(100, 50, 90)])
    assert found.error_ns == 0


def test_bounds_add_up() -> None:
    assert Offset(5, 2).plus(Offset(-3, 4)) == Offset(2, 6)
