"""Whether the service is still wanted; joining and ending are decided here, and nowhere else.

Everything runs on one event loop and nothing here waits, so that a join either comes before the
decision to end, and prevents it, or after it, and is refused.
"""

from __future__ import annotations

import math

__all__ = ["Occupancy"]


class Occupancy:
    """Who uses the service, and since when nobody does.

    Args:
      idle_s: Seconds without use after which the service ends; infinity: never.
      now: The clock's time, in seconds.
    """

    def __init__(self, idle_s: float, now: float) -> None:
        self._idle_s = idle_s
        self._users = 0
        self._idle_since = now
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether it is decided that the service ends; never taken back."""
        return self._ending

    def enter(self) -> bool:
        """Counts one more user; returns False when the service is ending."""
        if self._ending:
            return False
        self._users += 1
        return True

    def leave(self, now: float) -> None:
        """Counts one user less."""
        assert self._users > 0
        self._users -= 1
        self._idle_since = now

    def end(self) -> None:
        """Decides to end, whoever uses the service."""
        self._ending = True

    def end_if_idle(self, now: float) -> bool:
        """Decides to end if nobody has used the service for long enough; returns `ending`."""
        if now >= self.deadline():
            self._ending = True
        return self._ending

    def deadline(self) -> float:
        """When the service ends if nobody comes; infinity while it is used."""
        return math.inf if self._users else self._idle_since + self._idle_s
