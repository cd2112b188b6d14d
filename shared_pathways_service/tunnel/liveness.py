"""When to ask the far end whether it is there, and when to stop believing that it is."""

from __future__ import annotations

import enum

__all__ = ["Liveness", "Verdict"]


class Verdict(enum.Enum):
    """What to do now."""

    WAIT = "wait"
    PING = "ping"
    GONE = "gone"


class Liveness:
    """Decides by what was heard; whatever arrives proves the far end alive.

    While a connection is held up, pings and pongs wait behind its data, so that silence proves
    nothing: time begins anew when it flows again.

    Args:
      ping_s: Seconds between two pings.
      pong_s: Seconds that an answer may take.
      now: Seconds on any clock that only goes forward, as are all further times.
    """

    def __init__(self, ping_s: float, pong_s: float, now: float) -> None:
        self._ping_s = ping_s
        self._pong_s = pong_s
        self._since = now  # the last ping, or the end of a hold-up
        self._is_asked = False

    @property
    def due_at(self) -> float:
        """When to look again; `heard` may change it."""
        return self._since + (self._pong_s if self._is_asked else self._ping_s)

    def heard(self) -> bool:
        """Something arrived; returns whether it was waited for."""
        was_asked, self._is_asked = self._is_asked, False
        return was_asked

    def look(self, now: float, *, is_held_up: bool) -> Verdict:
        """Decides.

        Args:
          now: The time.
          is_held_up: Whether one of the directions waits for its reader.
        """
        if now < self.due_at:
            return Verdict.WAIT
        self._since = now
        if not self._is_asked:
            self._is_asked = True
            return Verdict.PING
        if not is_held_up:
            return Verdict.GONE
        self._is_asked = False
        return Verdict.WAIT
