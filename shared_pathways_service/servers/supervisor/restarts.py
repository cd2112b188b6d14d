"""Decides when to restart a process: at once, but with a delay in a crash loop."""

from __future__ import annotations

__all__ = ["RestartPolicy"]

#: Seconds of running after which an end does not count as part of a crash loop.
SETTLED_S = 5.0
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 10.0


class RestartPolicy:
    """Counts restarts up to a limit, and determines the delay before the next one."""

    def __init__(self, limit: int | None = None) -> None:
        self.restarts = 0
        self._limit = limit
        self._fast = 0

    def next_delay(self, lived_s: float) -> float | None:
        """Returns seconds to wait after a process ran so long; None if the limit is reached."""
        if self._limit is not None and self.restarts >= self._limit:
            return None
        self.restarts += 1
        self._fast = 0 if lived_s >= SETTLED_S else self._fast + 1
        if self._fast <= 1:
            return 0.0
        return float(min(_FIRST_DELAY_S * 2 ** (self._fast - 2), _LONGEST_DELAY_S))
