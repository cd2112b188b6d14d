"""Suspends timeouts after this process stalled, and while peers reconnect after a restart."""

from __future__ import annotations

from shared_pathways_service.events import Event
from shared_pathways_service.events.manager_events import ManagerRecovered, ManagerRecovering
from shared_pathways_service.scheduling.book import messages

__all__ = ["Patience"]

# A pulse that is this late shows that this process was stalled: it was stopped, or the machine
# was suspended or overloaded (once, three services on one machine stalled for 26 s, and two of
# them took their workers for dead when they resumed). Messages that arrived meanwhile are still
# unread, and the peers may have stalled as well: timeouts are suspended for a while, unless stalls
# repeat without end.
_STALLED_S = 1.0
_CATCH_UP_S = 5.0
_HELD_S = 30.0

# A peer that is alive dials a restarted manager at least every 2 s. As long as peers still arrive,
# others may be queued behind them: accepting ten thousand workers takes 7 s of a processor core,
# which on a machine with a third of a core to spare is longer than the grace period of 20 s.
_COMING_S = 4.0
_COMING_MOST_S = 180.0


class Patience:
    """Decides until when deadlines are deferred; times are the core's.

    Attributes:
      until: No deadline fires before this time.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._held_since: float | None = None
        self._coming_since: float | None = None
        self._is_recovering = False

    def pulsed(self, now: float, due: float) -> bool:
        """Handles a pulse that was due at `due`; returns whether the process was stalled."""
        if now - due < _STALLED_S:
            if now >= self.until:
                self._held_since = None
            return False
        if self._held_since is None:
            self._held_since = now
        self._put_off(min(now + _CATCH_UP_S, self._held_since + _HELD_S))
        return True

    def rang(self, now: float, due: float) -> bool:
        """Handles a deadline's timer that was due at `due`; returns whether to defer deadlines.

        It may be due before the first pulse after a stall.
        """
        return now - due >= _STALLED_S and self.pulsed(now, due) and now < self.until

    def announced(self, event: Event) -> None:
        """Handles an event of the core: whether it waits for known peers to return."""
        if isinstance(event, ManagerRecovering):
            self._is_recovering = True
        elif isinstance(event, ManagerRecovered):
            self._is_recovering = False
            self._coming_since = None

    def received(self, event: messages.ResourceManagerEvent, now: float) -> None:
        """Handles an input of the core: whether a known peer returns."""
        if not self._is_recovering or not _comes_back(event):
            return
        if self._coming_since is None:
            self._coming_since = now
        self._put_off(min(now + _COMING_S, self._coming_since + _COMING_MOST_S))

    def _put_off(self, until: float) -> None:
        self.until = max(self.until, until)


def _comes_back(event: messages.ResourceManagerEvent) -> bool:
    """Whether the event is the hello of a peer that a manager accepted before."""
    if isinstance(event, messages.WorkerJoined):
        return event.welcomed_at is not None
    return isinstance(event, messages.TenantAsked) and bool(event.claims)
