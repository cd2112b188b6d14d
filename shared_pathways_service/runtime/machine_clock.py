"""Time that passes on this machine, whatever is set as its date."""

from __future__ import annotations

import time

__all__ = ["machine_time"]

#: (On macOS the latter goes on during a sleep, too.)
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def machine_time() -> float:
    """Returns seconds, from any start, that also pass while this machine sleeps.

    `time.time` is set forward and back, and `time.monotonic` stands still during a sleep.
    """
    return time.clock_gettime(_CLOCK)
