"""Deadlines of tests: longer on a machine that is slow or busy, in one place.

Tests assert results, never speed: a deadline ends a test that would wait for ever.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["deadline", "left_after", "slowness", "wait_until"]

#: Set by the first process of a run for all others.
_VARIABLE = "SPS_TEST_SLOWNESS"
#: Seconds of the work below on one idle core of a server of 2020.
_USUAL_S = 0.15
_WORK = 3_000_000
#: A test that hangs should end within an hour on any machine.
_MOST = 4.0
#: Seconds between two looks, at least and at most.
_PAUSES_S = (0.01, 0.25)
#: How many times longer a pause is than the look before it, which may cost others as much.
_PAUSE_OF_A_LOOK = 2.0
#: Seconds between two looks at what is about to end.
_END_PAUSE_S = 0.02

T = TypeVar("T")


@functools.cache
def slowness() -> float:
    """Returns how many times longer work takes here than on an idle machine: 1 to 4.

    It is the larger of two figures: how long a fixed piece of work took, which sees a slow
    processor, and the number of processes that want a core, which sees what starts and stops.
    """
    if (known := os.environ.get(_VARIABLE)) is None:
        began = time.perf_counter()
        sum(number * number for number in range(_WORK))
        took = (time.perf_counter() - began) / _USUAL_S
        queue = os.getloadavg()[0] / (os.cpu_count() or 1)
        known = os.environ[_VARIABLE] = f"{min(max(1.0, took, queue), _MOST):.2f}"
    return float(known)


def deadline(seconds: float) -> float:
    """Returns the seconds that a test waits here, where a usual machine needs far less than given.

    Args:
      seconds: Generous for a usual machine with two busy cores.
    """
    return seconds * slowness()


def wait_until(what: str, look: Callable[[], T | None], seconds: float = 180.0) -> T:
    """Waits until something is true, and returns it.

    Args:
      what: Named in the failure.
      look: Called until it returns something true.
      seconds: As those of `deadline`.
    """
    began = time.monotonic()
    end = began + deadline(seconds)
    while not (seen := look()):
        looked = time.monotonic()
        assert looked < end, f"waited {deadline(seconds):.0f} s for {what}"
        least, most = _PAUSES_S
        time.sleep(min(most, max(least, _PAUSE_OF_A_LOOK * (looked - began))))
        began = time.monotonic()
    return seen


def left_after(look: Callable[[], list[T]], seconds: float) -> list[T]:
    """Waits until nothing is left, and returns what still is after that time.

    Args:
      look: Returns what is left now.
      seconds: As those of `deadline`.
    """
    end = time.monotonic() + deadline(seconds)
    while (left := look()) and time.monotonic() < end:
        time.sleep(_END_PAUSE_S)
    return left
