"""Decides whether the service is still in use: all joins and ends are decided here.

Everything runs on one event loop without waiting, so that a join either precedes the decision to
end, and prevents it, or follows it, and is refused.
"""

from __future__ import annotations

import math

__all__ = ["Occupancy"]


class Occupancy:
    """Counts the users of the service, and ends it after `idle_s` seconds without; inf: never."""

    def __init__(self, idle_s: float, now: float) -> None:
        self._idle_s = idle_s
        self._users = 0
        self._idle_since = now
        #: Whether the service is ending; never reset.
        self.ending = False

    def enter(self) -> bool:
        """Counts one more user; returns False if the service is ending."""
        if self.ending:
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
        self.ending = True

    def end_if_idle(self, now: float) -> bool:
        """Decides to end if the service has been idle for long enough; returns `ending`."""
        if now >= self.deadline():
            self.ending = True
        return self.ending

    def deadline(self) -> float:
        """When the service ends without a user; infinity while it is in use."""
        return math.inf if self._users else self._idle_since + self._idle_s
