"""How much is started before it settles, and what waits until all has."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S
from shared_pathways_service.servers.proxy.execution import in_flight as module
from shared_pathways_service.servers.proxy.execution.in_flight import InFlight, Pace
from shared_pathways_service.servers.serving.last_requests_file import (
    LastRequests,
    read_unfinished,
)


class Started:
    def __init__(self, name: str = "started") -> None:
        self.name = name


def in_flight() -> InFlight:
    return InFlight(LastRequests().place(""))


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    monkeypatch.setattr(module, "_BRIEF_S", DEADLINE_S)


def test_nothing_is_ahead_of_a_program_that_may_take_long() -> None:
    flight, first, brief = in_flight(), Started(), Pace(0.0)
    # Not run yet; then it took longer than all in flight may.
    for pace in (Pace(), Pace(2 * DEADLINE_S)):
        assert flight.enter(first, 0, pace, waits=False)
        assert not flight.enter(Started(), 0, brief, waits=False)
        flight.leave(first)
        first = Started()
    assert flight.enter(first, 0, brief, waits=False)
    assert not flight.enter(Started(), 0, Pace(), waits=False)


def test_the_seconds_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 9)
    monkeypatch.setattr(module, "_BRIEF_S", 3.0)
    flight = in_flight()
    for _ in range(3):
        assert flight.enter(Started(), 0, Pace(1.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(1.0), waits=False)


def test_each_run_sets_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(f"{module.__name__}.time.monotonic", lambda: now[0])
    flight, first, second = in_flight(), Started(), Started()
    pace, other = Pace(0.0), Pace(0.0)
    flight.enter(first, 0, pace, waits=False)
    flight.enter(second, 0, other, waits=False)
    now[0] += 3.0
    flight.leave(first)
    now[0] += 2.0
    # It has waited for the first one.
    flight.leave(second)
    assert (pace.nanoseconds, other.nanoseconds) == (3e9, 2e9)


def test_count_and_bytes_are_bounded() -> None:
    flight = in_flight()
    first, second, third = Started(), Started(), Started()
    # One alone may have any size.
    assert flight.enter(first, 1000, Pace(0.0), waits=False)
    assert not flight.enter(second, 1, Pace(0.0), waits=False)
    flight.leave(first)
    assert flight.enter(second, 50, Pace(0.0), waits=False)
    assert not flight.enter(third, 51, Pace(0.0), waits=False)
    assert flight.enter(third, 50, Pace(0.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(0.0), waits=False)


@pytest.mark.parametrize("wait", ["for room", "for all"])
def test_waits_end_when_what_is_in_flight_settles(wait: str) -> None:
    flight, first, second = in_flight(), Started(), Started()
    flight.enter(first, 60, Pace(0.0), waits=True)
    ended = threading.Event()

    def run() -> None:
        if wait == "for room":
            flight.enter(second, 60, Pace(0.0), waits=True)
        else:
            flight.begin_alone("alone", waits=True)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not flight.begin_alone("another", waits=False)
    assert not ended.is_set()
    flight.leave(first)
    assert ended.wait(DEADLINE_S)
    thread.join()
    assert flight.begin_alone("another", waits=False) is (wait == "for all")


def test_what_waits_for_room_goes_on_when_half_have_settled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MOST", 4)
    flight, started, waiting = in_flight(), [Started() for _ in range(4)], Started("waiting")
    for operation in started:
        assert flight.enter(operation, 0, Pace(0.0), waits=False)
    thread = threading.Thread(
        target=flight.enter, args=(waiting, 0, Pace(0.0)), kwargs={"waits": True}, daemon=True
    )
    thread.start()
    wait_until("the operation that waits", lambda: flight._enough_left >= 0)
    assert flight._enough_left == 2
    flight.leave(started[0])
    # There is room, which it does not take yet.
    extra = Started()
    assert flight.enter(extra, 0, Pace(0.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(0.0), waits=False)
    for operation in started[1:3]:
        flight.leave(operation)
    thread.join(DEADLINE_S)
    assert waiting in flight._started


def test_the_record_shows_the_oldest_operation_in_flight_before_that_of_the_queue(
    tmp_path: Path,
) -> None:
    def recorded() -> tuple[str, ...]:
        return read_unfinished(tmp_path / "last").running

    flight = InFlight(LastRequests(str(tmp_path / "last")).place("on slice 0"))
    first, second = Started("first"), Started("second")
    for operation in (first, second):
        assert flight.enter(operation, 0, Pace(0.0), waits=False)
        assert recorded() == ("first on slice 0",)
    # (As the queue does after each operation.)
    flight.end()
    assert not flight.begin_alone("third", waits=False)
    assert recorded() == ("first on slice 0",)
    flight.leave(first)
    assert recorded() == ("second on slice 0",)
    flight.leave(second)
    assert recorded() == ()
    assert flight.begin_alone("third", waits=False)
    assert recorded() == ("third on slice 0",)
    flight.end()
    assert recorded() == ()
