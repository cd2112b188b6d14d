"""How much is started before it settles, and what waits until all has."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.servers.proxy.execution import in_flight as module
from shared_pathways_service.servers.proxy.execution.in_flight import InFlight


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


def test_at_most_two_are_in_flight_if_they_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST", 9)
    flight = InFlight()
    for _ in range(4):
        assert flight.enter(Started(), 0, waits=False)
    monkeypatch.setattr(module, "_BRIEF_S", 0)
    assert not flight.enter(Started(), 0, waits=False)
    slow = InFlight()
    assert slow.enter(Started(), 0, waits=False)
    assert slow.enter(Started(), 0, waits=False)
    assert not slow.enter(Started(), 0, waits=False)


def test_count_and_bytes_are_bounded() -> None:
    flight = InFlight()
    first, second, third = Started(), Started(), Started()
    # One alone may have any size.
    assert flight.enter(first, 1000, waits=False)
    assert not flight.enter(second, 1, waits=False)
    first.settle()
    assert flight.enter(second, 50, waits=False)
    assert not flight.enter(third, 51, waits=False)
    assert flight.enter(third, 50, waits=False)
    assert not flight.enter(Started(), 0, waits=False)


def test_one_that_has_settled_takes_no_room() -> None:
    flight, settled = InFlight(), Started()
    settled.settle()
    assert flight.enter(settled, 100, waits=False)
    assert flight.is_empty(waits=False)


@pytest.mark.parametrize("wait", ["for room", "for all"])
def test_waits_end_when_what_is_in_flight_settles(wait: str) -> None:
    flight, first, second = InFlight(), Started(), Started()
    flight.enter(first, 60, waits=True)
    ended = threading.Event()

    def run() -> None:
        if wait == "for room":
            flight.enter(second, 60, waits=True)
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
