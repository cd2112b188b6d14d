"""When a process that ended is started again: at once, but for one that does nothing else."""

from __future__ import annotations

__all__ = ["RestartPolicy"]

#: Seconds after which a process has done its work for a while: its end is no crash loop.
SETTLED_S = 5.0
_FIRST_DELAY_S = 0.05
_LONGEST_DELAY_S = 10.0


class RestartPolicy:
    """Counts restarts of one thing, and says how long to wait before the next.

    Args:
      limit: Restarts in all; None: no limit.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.restarts = 0
        self._limit = limit
        self._fast = 0

    def next_delay(self, lived_s: float) -> float | None:
        """Decides on a restart.

        Args:
          lived_s: How long the process lived, in seconds.

        Returns:
          Seconds to wait; None when the limit is reached.
        """
        if self._limit is not None and self.restarts >= self._limit:
            return None
        self.restarts += 1
        self._fast = 0 if lived_s >= SETTLED_S else self._fast + 1
        if self._fast <= 1:
            return 0.0
        return float(min(_FIRST_DELAY_S * 2 ** (self._fast - 2), _LONGEST_DELAY_S))
