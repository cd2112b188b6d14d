"""How much is started before it settles, and what waits until all has."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

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
        self.callbacks: list[Callable[[], None]] | None = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        if self.callbacks is None:
            return False
        self.callbacks.append(callback)
        return True

    def settle(self) -> None:
        callbacks, self.callbacks = self.callbacks or [], None
        for callback in callbacks:
            callback()


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
        first.settle()
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
    first.settle()
    now[0] += 2.0
    # It has waited for the first one.
    second.settle()
    assert (pace.seconds, other.seconds) == (3.0, 2.0)


def test_count_and_bytes_are_bounded() -> None:
    flight = in_flight()
    first, second, third = Started(), Started(), Started()
    # One alone may have any size.
    assert flight.enter(first, 1000, Pace(0.0), waits=False)
    assert not flight.enter(second, 1, Pace(0.0), waits=False)
    first.settle()
    assert flight.enter(second, 50, Pace(0.0), waits=False)
    assert not flight.enter(third, 51, Pace(0.0), waits=False)
    assert flight.enter(third, 50, Pace(0.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(0.0), waits=False)


def test_one_that_has_settled_takes_no_room() -> None:
    flight, settled = in_flight(), Started()
    settled.settle()
    assert flight.enter(settled, 100, Pace(0.0), waits=False)
    assert flight.is_empty(waits=False)


@pytest.mark.parametrize("wait", ["for room", "for all"])
def test_waits_end_when_what_is_in_flight_settles(wait: str) -> None:
    flight, first, second = in_flight(), Started(), Started()
    flight.enter(first, 60, Pace(0.0), waits=True)
    ended = threading.Event()

    def run() -> None:
        if wait == "for room":
            flight.enter(second, 60, Pace(0.0), waits=True)
        else:
            flight.is_empty(waits=True)
        ended.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert not flight.is_empty(waits=False)
    assert not ended.is_set()
    first.settle()
    assert ended.wait(DEADLINE_S)
    thread.join()
    assert flight.is_empty(waits=False) is (wait == "for all")


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
    deadline = time.monotonic() + DEADLINE_S
    while not flight._enough_left:
        assert time.monotonic() < deadline
    assert flight._enough_left == 2
    started[0].settle()
    # There is room, which it does not take yet.
    extra = Started()
    assert flight.enter(extra, 0, Pace(0.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(0.0), waits=False)
    for operation in started[1:3]:
        operation.settle()
    thread.join(DEADLINE_S)
    assert waiting.callbacks


def test_the_record_shows_the_oldest_operation_in_flight_before_that_of_the_queue(
    tmp_path: Path,
) -> None:
    def recorded() -> tuple[str, ...]:
        return read_unfinished(tmp_path / "last").running

    flight = InFlight(LastRequests(str(tmp_path / "last")).place("on slice 0"))
    first, second = Started("first"), Started("second")
    for operation in (first, second):
        flight.begin(operation.name)
        assert flight.enter(operation, 0, Pace(0.0), waits=False)
        flight.end()
        assert recorded() == ("first on slice 0",)
    flight.begin("third")
    assert recorded() == ("first on slice 0",)
    first.settle()
    assert recorded() == ("second on slice 0",)
    second.settle()
    assert recorded() == ("third on slice 0",)
    flight.end()
    assert recorded() == ()
