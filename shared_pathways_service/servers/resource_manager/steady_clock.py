"""The clock of the resource manager's core."""

from __future__ import annotations

import time

__all__ = ["SteadyClock"]

#: A wall clock that was set back by so much between two lives is made up for.
_SET_BACK_S = 86_400.0


class SteadyClock:
    """Seconds since the epoch that never jump: the wall clock's at the start, then monotonic."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def go_on_from(self, last: float) -> None:
        """Begins no earlier than the clock of a former life had come to.

        Args:
          last: What that one said last. A clock that was ahead by more than a day was wrong, and is
            not gone on with.
        """
        behind = last - self()
        if 0 < behind <= _SET_BACK_S:
            self._offset += behind

    def __call__(self) -> float:
        """Returns now."""
        return self._offset + time.monotonic()
