"""Limits the bytes that are under way, so that small messages do not wait behind large transfers.

Everything under way beyond bandwidth times round trip only fills queues on the way. The limit grows
while acknowledgements come about as fast as on an idle link, and shrinks when they come much later,
like TCP Vegas (Brakmo and Peterson, 1995). On a busy machine they come late as well, some of them
or all. So the limit shrinks only if even the earliest of an interval came late (as Nichols and
Jacobson's CoDel tells a queue from a burst, 2012) and the rate does not fall with it, and not below
what the measured rate needs.
"""

from __future__ import annotations

import math

__all__ = ["LargestRate", "Pacing"]

_FIRST_BYTES = 512 << 10
_LEAST_BYTES = 64 << 10
#: Seconds for which the shortest round trip counts: routes change.
_BASE_S = 30.0
#: Seconds of a round trip from which those of small messages count.
_LONG_WAY_S = 0.01
#: Queueing delays, in seconds and in shortest round trips, below which the limit grows and above
#: which it shrinks. (The seconds are the scheduling of busy machines.)
_GROW_S, _GROW_TRIPS = 0.0015, 0.5
_SHRINK_S, _SHRINK_TRIPS = 0.004, 1.5
_SHRINK_TO = 0.8
#: The part of the largest rate at which a shorter queue has not cost any.
_SAME_RATE = 0.85
#: Shortest round trips by which a machine is late at most that gets more under way.
_LATE_TRIPS = 4.0
#: Seconds of an interval at the least.
_INTERVAL_S = 0.05
#: Seconds for which the largest rate counts here, and for which a busy machine needs bytes besides.
_RATE_S, _BUSY_S = 3.0, 0.008
#: Seconds over which a rate is measured at the least. (One of a moment says nothing: what waited
#: for a busy machine comes at once.)
_MEASURED_S = 0.02
#: Seconds without bytes, whose time does not count.
_IDLE_S = 1.0


class LargestRate:
    """The largest rate of late.

    Args:
      lasts_s: Seconds for which a rate counts, without those in which the link is idle.

    Attributes:
      bytes_per_s: The rate; 0 before it was measured.
      latest_bytes_per_s: The one that was measured last.
    """

    def __init__(self, lasts_s: float) -> None:
        self.bytes_per_s = self.latest_bytes_per_s = 0.0
        self._lasts_s = lasts_s
        self._measured_at = 0.0
        self._counted_from: float | None = None
        self._counted_bytes = 0

    def add(self, count: int, round_trip_s: float, now: float) -> None:
        """Records bytes; a rate is measured over a round trip or longer.

        Args:
          count: How many.
          round_trip_s: In seconds.
          now: Seconds on a monotonic clock.
        """
        if self._counted_from is None:
            self._counted_from = now
            return
        self._counted_bytes += count
        took_s = now - self._counted_from
        if took_s < max(round_trip_s, _MEASURED_S):
            return
        rate = self._counted_bytes / took_s
        if took_s > round_trip_s + _IDLE_S:
            # (An idle link says nothing about the rate.)
            self._measured_at += took_s
            self._counted_from, self._counted_bytes = now, 0
            return
        self.latest_bytes_per_s = rate
        if rate >= self.bytes_per_s or now - self._measured_at > self._lasts_s:
            self.bytes_per_s, self._measured_at = rate, now
        self._counted_from, self._counted_bytes = now, 0


class Pacing:
    """Decides how many bytes may be under way, from the round trips of those before.

    Args:
      most_bytes: The limit's own limit.

    Attributes:
      limit_bytes: The present limit.
    """

    def __init__(self, most_bytes: int) -> None:
        self.limit_bytes = min(_FIRST_BYTES, most_bytes)
        self._most_bytes = most_bytes
        self._base_s: float | None = None
        self._base_at = 0.0
        self._interval_from = 0.0
        self._least_queued_s = math.inf
        self._rate = LargestRate(_RATE_S)

    @property
    def round_trip_s(self) -> float:
        """The shortest round trip of late, in seconds; 0 before the first one."""
        return self._base_s or 0.0

    def on_ack(self, sent_at: float, acked_bytes: int, under_way_bytes: int, now: float) -> None:
        """Records an acknowledgement.

        Args:
          sent_at: When the last of these bytes was sent, in seconds on a monotonic clock.
          acked_bytes: How many bytes it acknowledges.
          under_way_bytes: How many bytes were under way before it.
          now: The time.
        """
        trip = max(0.0, now - sent_at)
        base_s = self._shortest(trip, now)
        queued = trip - base_s
        self._rate.add(acked_bytes, base_s, now)
        is_idle = 2 * under_way_bytes < self.limit_bytes
        # (An idle link says nothing about a higher limit.)
        if queued < _GROW_S + _GROW_TRIPS * base_s and not is_idle:
            self.limit_bytes = min(self._most_bytes, self.limit_bytes + acked_bytes)
        self._shrink_after_interval(queued, base_s, now)

    def on_light_ack(self, sent_at: float, now: float) -> None:
        """Records an acknowledgement of few bytes, which did not wait behind others of this end.

        Args:
          sent_at: When they were sent.
          now: The time.
        """
        # (On a short way a piece of a transfer takes longer by its processing alone.)
        if now - sent_at >= _LONG_WAY_S:
            self._shortest(now - sent_at, now)

    def _shortest(self, trip_s: float, now: float) -> float:
        if self._base_s is None or trip_s <= self._base_s or now - self._base_at > _BASE_S:
            self._base_s, self._base_at = trip_s, now
        return self._base_s

    def _shrink_after_interval(self, queued_s: float, base_s: float, now: float) -> None:
        self._least_queued_s = least_s = min(queued_s, self._least_queued_s)
        if now - self._interval_from < max(_INTERVAL_S, base_s):
            return
        self._interval_from, self._least_queued_s = now, math.inf
        if least_s <= _SHRINK_S + _SHRINK_TRIPS * base_s:
            return
        if self._rate.latest_bytes_per_s < _SAME_RATE * self._rate.bytes_per_s:
            # A queue would have kept the rate up: the machine is late, and needs more under way.
            late_s = min(base_s + least_s, _LATE_TRIPS * base_s)
            grown = max(self.limit_bytes, int(self._rate.bytes_per_s * late_s))
            self.limit_bytes = min(grown, self._most_bytes)
        else:
            needed = self._rate.bytes_per_s * (base_s * (1 + _GROW_TRIPS) + _BUSY_S)
            shrunk = max(_LEAST_BYTES, int(needed), int(self.limit_bytes * _SHRINK_TO))
            self.limit_bytes = min(self.limit_bytes, shrunk)
