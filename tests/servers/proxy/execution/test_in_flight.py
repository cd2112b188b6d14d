"""How much is started before it settles, and what waits until all has."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.servers.proxy.execution import in_flight as module
from shared_pathways_service.servers.proxy.execution.in_flight import InFlight, Pace


class Started:
    def __init__(self) -> None:
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


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 2)
    monkeypatch.setattr(module, "_MOST_BYTES", 100)
    monkeypatch.setattr(module, "_BRIEF_S", DEADLINE_S)


def test_nothing_is_ahead_of_a_program_that_may_take_long() -> None:
    flight, first, brief = InFlight(), Started(), Pace(0.0)
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
    flight = InFlight()
    for _ in range(3):
        assert flight.enter(Started(), 0, Pace(1.0), waits=False)
    assert not flight.enter(Started(), 0, Pace(1.0), waits=False)


def test_each_run_sets_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(f"{module.__name__}.time.monotonic", lambda: now[0])
    flight, first, second = InFlight(), Started(), Started()
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
    flight = InFlight()
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
    flight, settled = InFlight(), Started()
    settled.settle()
    assert flight.enter(settled, 100, Pace(0.0), waits=False)
    assert flight.is_empty(waits=False)


@pytest.mark.parametrize("wait", ["for room", "for all"])
def test_waits_end_when_what_is_in_flight_settles(wait: str) -> None:
    flight, first, second = InFlight(), Started(), Started()
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
