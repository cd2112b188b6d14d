"""The factor of all time-outs: ``SPS_PATIENCE``, or what this process measures.

The measurements are cheap, and need no thread: they are made when a time-out is used, at most once
per second. `Deadline` and `within` also notice that this process itself was stalled.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from .slowness import STALL_S, Sample, Slowness

__all__ = ["LEAST", "MOST", "VARIABLE", "Deadline", "Timeout", "factor", "given", "stalled"]

#: The variable that sets the factor, for this process and its children.
VARIABLE: Final = "SPS_PATIENCE"
#: The smallest and the largest factor that may be set.
LEAST: Final = 0.01
MOST: Final = 100.0

#: Seconds between two samples.
_SAMPLE_INTERVAL_S = 1.0
#: Seconds after which a wait looks whether it was late, or may be longer.
_LOOK_S = 0.25
#: Stalls that one wait excuses: a process that is always late has a larger factor instead.
_STALLS = 10
#: Steps of the calculation that measures the pace, and the seconds that they take on the machine
#: where the time-outs were chosen (Python 3.13, 2 cores of a virtual machine, 2026).
_STEPS = 20_000
_STEPS_TAKE_S = 0.0016

_Result = TypeVar("_Result")


@functools.lru_cache(maxsize=16)
def given(text: str) -> float | None:
    """Returns the factor that a text sets; None: it is not a number from `LEAST` to `MOST`."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if LEAST <= value <= MOST else None


def factor() -> float:
    """Returns the factor that scales time-outs now."""
    text = os.environ.get(VARIABLE)
    # (Settings and servers report a wrong one.)
    set_to = given(text) if text else None
    return _measured() if set_to is None else set_to


def stalled(late_s: float) -> None:
    """Takes into account that this process woke up late, by this many seconds."""
    _slowness().stall(time.monotonic(), late_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Timeout:
    """The time after which a wait is given up; `timeouts` has all of them.

    Attributes:
      seconds: The time on a quiet machine.
    """

    seconds: float

    @property
    def s(self) -> float:
        """The seconds as of now; to be read where the wait begins."""
        return self.seconds * factor()

    def deadline(self) -> Deadline:
        """Returns the deadline of a wait that begins now."""
        return Deadline(self)


class Deadline:
    """The end of a wait: later if the factor rises meanwhile, or if this process stalls."""

    def __init__(self, timeout: Timeout, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout = timeout
        self._clock = clock
        self._began = clock()
        self._stalls = 0
        self._stalled_s = 0.0

    @property
    def left_s(self) -> float:
        """The seconds that are left; 0: the wait is over."""
        waited_s = self._clock() - self._began - self._stalled_s
        return max(0.0, self._timeout.s - waited_s)

    @property
    def part_s(self) -> float:
        """The seconds of the next part of the wait; a stall excuses one part of it."""
        left_s = self.left_s
        return max(left_s / 2, min(left_s, _LOOK_S))

    def waited(self, took_s: float, planned_s: float) -> None:
        """Does not count a part of the wait in which this process was stalled.

        Whether it was stalled at the beginning or at the end is not known.
        """
        if took_s - planned_s >= STALL_S:
            stalled(took_s - planned_s)
            if self._stalls < _STALLS:
                self._stalls += 1
                self._stalled_s += took_s

    def step(self, wait: Callable[[float], _Result]) -> _Result:
        """Calls `wait` with some seconds of what is left, and notices if it took far longer."""
        seconds = min(self.left_s, _LOOK_S)
        began = self._clock()
        try:
            return wait(seconds)
        finally:
            self.waited(self._clock() - began, seconds)

    def wait(self, wait: Callable[[float], Any]) -> bool:
        """Calls `wait` until it returns true, or the wait is over; returns whether it did."""
        while not self.step(wait):
            if not self.left_s:
                return False
        return True


def _measured() -> float:
    slowness, now = _slowness(), time.monotonic()
    if now - slowness.sampled_at >= _SAMPLE_INTERVAL_S:
        slowness.sample(_sample(now))
    return slowness.factor(now)


@functools.cache
def _slowness() -> Slowness:
    now = time.monotonic()
    slowness = Slowness(now, _pace())
    slowness.sample(_sample(now))
    return slowness


def _sample(now: float) -> Sample:
    ran_s, queued_s = _run_queue()
    try:
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
    except OSError:
        load = 0.0
    return Sample(at=now, ran_s=ran_s, queued_s=queued_s, load=load)


def _run_queue() -> tuple[float, float]:
    """Returns the seconds for which the main thread ran, and for which it waited to run."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:  # noqa: PTH123 - often
            ran_ns, queued_ns, _ = file.read().split()
        return int(ran_ns) / 1e9, int(queued_ns) / 1e9
    except (OSError, ValueError):  # not Linux, or a kernel without it
        return 0.0, 0.0


def _pace() -> float:
    """Returns how many times longer a calculation takes than where time-outs were chosen."""
    return min(_steps_took_s() for _ in range(3)) / _STEPS_TAKE_S


def _steps_took_s() -> float:
    began, value = time.thread_time(), 1
    for step in range(_STEPS):
        value = (value * 31 + step) & 0xFFFF
    return time.thread_time() - began
