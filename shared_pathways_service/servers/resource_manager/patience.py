"""When nothing may run out yet, although its time has come: who would speak was not heard."""

from __future__ import annotations

from shared_pathways_service.events import Event
from shared_pathways_service.events.manager_events import ManagerRecovered, ManagerRecovering
from shared_pathways_service.scheduling.book import messages

__all__ = ["Patience"]

# A pulse that comes this late says that this process stood still: it was stopped, the machine
# slept, or had no time for it (of three services on one machine, all stood still for 26 s, and two
# took their workers for dead in the moment they went on). What came meanwhile is not read yet, and
# who beats may have stood still as well: nothing runs out before some time has passed, unless that
# goes on and on.
_STALLED_S = 1.0
_CATCH_UP_S = 5.0
_HELD_S = 30.0

# Whoever is alive dials a restarted manager every 2 s at the latest. As long as somebody still
# comes, others may stand in line behind it: to let ten thousand workers in takes 7 s of a core, and
# of a machine that has no more than a third of one for it longer than the 20 s that are waited.
_COMING_S = 4.0
_COMING_MOST_S = 180.0


class Patience:
    """Until when deadlines are put off; times are the core's.

    Attributes:
      until: Nothing runs out before.
    """

    def __init__(self) -> None:
        self.until = 0.0
        self._held_since: float | None = None
        self._coming_since: float | None = None
        self._is_recovering = False

    def pulsed(self, now: float, due: float) -> bool:
        """Hears a pulse that was due some time ago; returns whether the process stood still."""
        if now - due < _STALLED_S:
            if now >= self.until:
                self._held_since = None
            return False
        if self._held_since is None:
            self._held_since = now
        self._put_off(min(now + _CATCH_UP_S, self._held_since + _HELD_S))
        return True

    def announced(self, event: Event) -> None:
        """Hears what the core announces: whether it waits for who was there before."""
        if isinstance(event, ManagerRecovering):
            self._is_recovering = True
        elif isinstance(event, ManagerRecovered):
            self._is_recovering = False
            self._coming_since = None

    def heard(self, event: messages.ResourceManagerEvent, now: float) -> None:
        """Hears what goes into the core: whether somebody comes back whom it waits for."""
        if not self._is_recovering or not _comes_back(event):
            return
        if self._coming_since is None:
            self._coming_since = now
        self._put_off(min(now + _COMING_S, self._coming_since + _COMING_MOST_S))

    def _put_off(self, until: float) -> None:
        self.until = max(self.until, until)


def _comes_back(event: messages.ResourceManagerEvent) -> bool:
    """Whether it is a hello of one that a manager has let in before."""
    if isinstance(event, messages.WorkerJoined):
        return event.welcomed_at is not None
    return isinstance(event, messages.TenantAsked) and bool(event.claims)
