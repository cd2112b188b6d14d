"""The clock of the resource manager's core."""

from __future__ import annotations

import time

__all__ = ["SteadyClock"]

#: The largest step back of the wall clock between two runs that is compensated, in seconds.
_SET_BACK_S = 86_400.0


class SteadyClock:
    """Seconds since the epoch without jumps: the wall clock at the start, then monotonic."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def go_on_from(self, last: float) -> None:
        """Starts no earlier than the last time of the previous run.

        A clock that was ahead by more than a day was wrong, and is ignored.
        """
        behind = last - self()
        if 0 < behind <= _SET_BACK_S:
            self._offset += behind

    def __call__(self) -> float:
        """Returns now."""
        return self._offset + time.monotonic()
