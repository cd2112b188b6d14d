"""Holds up calls until a check opens a gate, and has only calls that are held up miss deadlines.

A check holds some slices up, and others answer. On a busy machine those can take longer than the
short time after which the check needs a slice to count as silent.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

from harness.deadlines import deadline
from shared_pathways_service.elastic.waiting import Outcome, _Waiter
from shared_pathways_service.testing.faults import SimulatedSlices

#: Nothing waits as long as that, unless it hangs.
DEADLINE_S = deadline(240.0)
#: Seconds between two looks at whether a call is held up.
_LOOK_S = 0.01
#: Tell whether these threads are still held up.
_held: dict[threading.Thread, Callable[[], bool]] = {}
_threads: weakref.WeakKeyDictionary[Outcome, threading.Thread] = weakref.WeakKeyDictionary()


class Gate:
    """Holds calls up until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set

    def wait(self) -> None:
        with held_up(lambda: not self._opened.is_set()):
            assert self._opened.wait(DEADLINE_S), "nobody opened it"


@contextlib.contextmanager
def held_up(is_held: Callable[[], bool]) -> Iterator[None]:
    """Marks this thread as held up, as long as `is_held` returns True."""
    thread = threading.current_thread()
    outer = _held.get(thread)
    _held[thread] = is_held
    try:
        yield
    finally:
        if outer is None:
            del _held[thread]
        else:
            _held[thread] = outer


@contextlib.contextmanager
def patience(of: str = "") -> Iterator[None]:
    """Has waits for calls time out only while their calls are held up.

    Args:
      of: The beginning of the names of the threads that make the calls.
    """
    call, wait, hang = _Waiter.call, Outcome.wait, SimulatedSlices.wait_while_hung

    def call_on(self: _Waiter, function: Callable[[], object]) -> Outcome:
        outcome = call(self, function)
        _threads[outcome] = self.thread
        return outcome

    def wait_patiently(self: Outcome, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not wait(self, _LOOK_S):
            thread = _threads[self]
            is_held = _held.get(thread) if thread.name.startswith(of) else lambda: True
            if is_held is not None and is_held() and time.monotonic() >= deadline:
                return False
            overdue_s = time.monotonic() - deadline
            assert overdue_s < DEADLINE_S, f"{thread.name} hangs, and nothing holds it up"
        return True

    def hang_up(self: SimulatedSlices, slices: Sequence[int]) -> None:
        with held_up(lambda: not self._closed and self._hung_for(slices) > 0):
            hang(self, slices)

    with (
        mock.patch.object(_Waiter, "call", call_on),
        mock.patch.object(Outcome, "wait", wait_patiently),
        mock.patch.object(SimulatedSlices, "wait_while_hung", hang_up),
    ):
        yield
