"""Decides whether the service is still in use: all joins and ends are decided here.

Everything runs on one event loop without waiting, so that a join either precedes the decision to
end, and prevents it, or follows it, and is refused.
"""

from __future__ import annotations

import math

__all__ = ["Occupancy"]


class Occupancy:
    """Counts the users of the service, and measures its idle time.

    After `idle_s` seconds of it the service ends; infinity: never.
    """

    def __init__(self, idle_s: float, now: float) -> None:
        self._idle_s = idle_s
        self._users = 0
        self._idle_since = now
        self._ending = False

    @property
    def ending(self) -> bool:
        """Whether the service is ending; never reset."""
        return self._ending

    def enter(self) -> bool:
        """Counts one more user; returns False if the service is ending."""
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
        """Decides to end, even if there are users."""
        self._ending = True

    def end_if_idle(self, now: float) -> bool:
        """Decides to end if the service has been idle for long enough; returns `ending`."""
        if now >= self.deadline():
            self._ending = True
        return self._ending

    def deadline(self) -> float:
        """When the service ends without a user; infinity while it is in use."""
        return math.inf if self._users else self._idle_since + self._idle_s
