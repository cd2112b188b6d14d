"""Calls the core at its next deadline, or later while peers catch up after a stall."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from shared_pathways_service.patience.factor import stalled
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.resource_manager.patience import Patience
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock

__all__ = ["CoreTimer"]

#: Seconds between pulses, by which `Patience` detects that this process was stalled.
_PULSE_INTERVAL_S = 1.0


class CoreTimer:
    """One timer on the running event loop, for the next deadline of a core.

    Args:
      clock: The core's.
      next_deadline: Returns the core's next deadline; None: no deadline before another event.
      tick: Passes the current time to the core.

    Attributes:
      patience: How long deadlines are deferred.
    """

    def __init__(
        self,
        clock: SteadyClock,
        next_deadline: Callable[[], float | None],
        tick: Callable[[], None],
    ) -> None:
        self.patience = Patience()
        self._clock = clock
        self._next_deadline = next_deadline
        self._tick = tick
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._closed = False
        self._pulse_timer = self._loop.call_later(
            _PULSE_INTERVAL_S, self._pulse, clock() + _PULSE_INTERVAL_S
        )

    def close(self) -> None:
        """Stops the timer."""
        self._closed = True
        self._pulse_timer.cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def arm(self) -> None:
        """Sets the timer to the core's next deadline, unless it is already set to an earlier time.

        Most events, heartbeats above all, only defer deadlines: a timer that sometimes fires too
        early is cheaper than a new timer for each event.
        """
        due = None if self._closed else self._due()
        if self._timer is not None:
            if due is not None and self._timer_due <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None:
            now = self._clock()
            self._timer_due = max(due, now)
            self._timer = self._loop.call_later(self._timer_due - now, self._ring)

    def _due(self) -> float | None:
        deadline = self._next_deadline()
        return None if deadline is None else max(deadline, self.patience.until)

    def _ring(self) -> None:
        # A pulse that was due before this call has already run, and a later one has not.
        self._timer = None
        due, now = self._due(), self._clock()
        if due is None or now < due:
            self.arm()
        elif self.patience.rang(now, self._timer_due):
            self._put_off(now - self._timer_due)
        else:
            self._tick()

    def _pulse(self, due: float) -> None:
        now = self._clock()
        self._pulse_timer = self._loop.call_later(
            _PULSE_INTERVAL_S, self._pulse, now + _PULSE_INTERVAL_S
        )
        stalled(now - due)
        if self.patience.pulsed(now, due):
            self._put_off(now - due)

    def _put_off(self, stalled_s: float) -> None:
        glog("W", f"This process was stalled for {stalled_s:.1f} s; heartbeats come first")
        self.arm()
