"""What a link keeps of its connections: enough for a long way, and no more than the budget."""

from __future__ import annotations

import pytest

from shared_pathways_service.tunnel.link.link_frames import LinkViolation
from shared_pathways_service.tunnel.link.windows import (
    BUDGET_BYTES,
    MAX_CONNECTIONS,
    SHARE_BYTES,
    WINDOW_BYTES,
    Windows,
)
from tests.tunnel.link.simulated_line import SimulatedLine

LARGEST = 4 * WINDOW_BYTES
#: A link in small: at 150 ms the least window allows 1.7 MB/s.
SMALL, TRIP_S, RATE = 256 << 10, 0.15, 4e6


def moving(bytes_per_s: float, round_trip_s: float, seconds: float = 3.0) -> Windows:
    """Returns the windows of a link that passed bytes on for some seconds, every 5 ms."""
    windows = Windows(WINDOW_BYTES)
    for step in range(int(seconds / 0.005)):
        windows.passed_on(int(bytes_per_s * 0.005), round_trip_s, step * 0.005)
    return windows


@pytest.mark.parametrize(
    ("bytes_per_s", "round_trip_s"), [(2.5e6, 0.15), (125e6, 0.02), (400e6, 0.001), (1e9, 0.0)]
)
def test_the_least_window_suffices_for_most_ways(bytes_per_s: float, round_trip_s: float) -> None:
    assert moving(bytes_per_s, round_trip_s).size_bytes == WINDOW_BYTES


def test_a_window_is_two_round_trips_of_the_rate() -> None:
    assert moving(80e6, 0.15).size_bytes == pytest.approx(24e6, rel=0.1)
    assert moving(1e9, 0.15).size_bytes == LARGEST


def test_bytes_that_come_at_once_after_a_stall_do_not_count_as_a_rate() -> None:
    windows = Windows(WINDOW_BYTES)
    windows.passed_on(1000, 0.001, 0.0)
    windows.passed_on(WINDOW_BYTES, 0.001, 5.0)
    windows.passed_on(WINDOW_BYTES, 0.001, 5.001)
    windows.passed_on(WINDOW_BYTES, 0.001, 5.1)
    assert windows.size_bytes == WINDOW_BYTES


def test_a_window_shrinks_when_its_rate_has_not_been_seen_for_half_a_minute() -> None:
    windows = moving(125e6, 0.15)
    # Idle for a long time.
    now = 1000.0
    for _ in range(25):
        now += 1.0
        windows.passed_on(1 << 20, 0.15, now)
    assert windows.size_bytes == LARGEST
    for _ in range(10):
        now += 1.0
        windows.passed_on(1 << 20, 0.15, now)
    assert windows.size_bytes == WINDOW_BYTES


def test_connections_that_stop_one_after_the_other_leave_room_to_the_rest() -> None:
    windows = moving(1e9, 0.15)
    windows.learn(LARGEST)
    kept: list[int] = []
    for _ in range(MAX_CONNECTIONS):
        room = windows.room(0, sum(kept))
        assert room >= SHARE_BYTES
        if len(kept) <= 2:
            assert room >= WINDOW_BYTES
        kept.append(room)
    assert kept[:3] == [BUDGET_BYTES // 2, BUDGET_BYTES // 4, BUDGET_BYTES // 8]
    assert sum(kept) <= BUDGET_BYTES + MAX_CONNECTIONS * SHARE_BYTES
    # What has more than its share when the budget is used waits until it has less.
    assert windows.room(kept[0], sum(kept)) == 0


def test_a_peer_that_names_no_window_gets_the_least_one() -> None:
    windows = moving(1e9, 0.15)
    windows.learn(0)
    assert windows.room(0, 0) == WINDOW_BYTES
    windows.learn(1 << 20)
    assert windows.room(0, 0) == 1 << 20
    windows.learn(1 << 60)
    assert windows.room(0, 0) == LARGEST


def test_a_peer_that_sends_more_than_the_least_window_of_all_is_refused() -> None:
    windows = Windows(WINDOW_BYTES)
    windows.check([LARGEST] * (MAX_CONNECTIONS // 4))
    with pytest.raises(LinkViolation, match="more than an end keeps"):
        windows.check([LARGEST] * (MAX_CONNECTIONS // 4 + 1))


def test_a_long_way_is_filled() -> None:
    line = SimulatedLine(SMALL, TRIP_S, RATE)
    number = line.open()
    line.run(2.0, number)
    before = line.read[number]
    line.run(4.0, number)
    assert line.read[number] - before > 0.95 * 4.0 * RATE
    assert SMALL < line.kept[number] <= 4 * SMALL


def test_a_reader_slower_than_a_long_way_never_waits() -> None:
    line = SimulatedLine(SMALL, TRIP_S, RATE)
    number = line.open()
    line.reads_per_s[number] = RATE * 0.8
    line.run(3.0, number)
    before = line.read[number]
    line.run(4.0, number)
    assert line.read[number] - before > 0.95 * 4.0 * line.reads_per_s[number]


def test_a_long_way_to_an_older_far_end_works_with_its_window() -> None:
    line = SimulatedLine(SMALL, TRIP_S, RATE, is_old_far_end=True)
    number = line.open()
    line.run(3.0, number)
    assert line.kept[number] <= SMALL
    assert line.read[number] > 0.8 * SMALL / TRIP_S * 2.0


def test_what_stops_on_a_long_way_is_kept_within_bounds_and_another_goes_on() -> None:
    line = SimulatedLine(SMALL, TRIP_S, RATE)
    stopped, other = line.open(), line.open()
    line.run(2.0, stopped)
    line.reads_per_s[stopped] = 0.0
    line.run(2.0, stopped)
    at_stop = line.read[stopped]
    before = line.read[other]
    line.run(3.0, stopped, other)
    assert line.read[stopped] == at_stop
    assert line.kept[stopped] <= 4 * SMALL
    assert line.read[other] - before > 0.85 * 3.0 * RATE


def test_connections_share_a_long_way() -> None:
    line = SimulatedLine(SMALL, TRIP_S, RATE)
    numbers = [line.open() for _ in range(4)]
    line.run(2.0, *numbers)
    before = dict(line.read)
    line.run(4.0, *numbers)
    each = [line.read[number] - before[number] for number in numbers]
    assert sum(each) > 0.95 * 4.0 * RATE
    assert min(each) > 0.7 * max(each)
