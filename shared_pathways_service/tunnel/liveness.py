"""Decides when to ping the far end, and when to consider it dead."""

from __future__ import annotations

import enum

from shared_pathways_service.patience.factor import Timeout

__all__ = ["Liveness", "Verdict"]


class Verdict(enum.Enum):
    """The next action."""

    WAIT = "wait"
    PING = "ping"
    GONE = "gone"


class Liveness:
    """Decides from received data; any data proves the far end alive.

    While a connection is blocked, pings and pongs wait behind its data, so silence proves nothing.
    The timeout restarts when data flows again. It follows the machine while it lasts (`Timeout.s`).

    Args:
      ping_s: Seconds between two pings.
      pong: The time for an answer.
      now: Seconds on a monotonic clock, as are all further times.
    """

    def __init__(self, ping_s: float, pong: Timeout, now: float) -> None:
        self._ping_s = ping_s
        self._pong = pong
        self._since = now  # the last ping, or the end of a blockage
        self._is_asked = False

    @property
    def due_at(self) -> float:
        """The time of the next check; `on_data` and `on_unblocked` may change it."""
        return self._since + (self._pong.s if self._is_asked else self._ping_s)

    def on_data(self) -> bool:
        """Records received data; returns whether a ping was unanswered."""
        was_asked, self._is_asked = self._is_asked, False
        return was_asked

    def on_unblocked(self, now: float) -> None:
        """Restarts the timeout of a ping, because its answer can arrive only now.

        A peer that takes data and never answers is therefore not given up while data moves.
        """
        if self._is_asked:
            self._since = now

    def check(self, now: float, *, is_blocked: bool) -> Verdict:
        """Decides the next action.

        Args:
          now: The time.
          is_blocked: Whether one of the directions waits for its reader.
        """
        if now < self.due_at:
            return Verdict.WAIT
        self._since = now
        if not self._is_asked:
            self._is_asked = True
            return Verdict.PING
        if not is_blocked:
            return Verdict.GONE
        self._is_asked = False
        return Verdict.WAIT
