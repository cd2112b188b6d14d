"""Limits the bytes that are under way, so that small messages do not wait behind large transfers.

Everything under way beyond bandwidth times round trip only fills queues on the way. The limit grows
while acknowledgements come about as fast as on an idle link, and shrinks when they come much later,
like TCP Vegas (Brakmo and Peterson, 1995).
"""

from __future__ import annotations

__all__ = ["Pacing"]

_FIRST_BYTES = 512 << 10
_LEAST_BYTES = 64 << 10
#: Seconds for which the shortest round trip counts: routes change.
_BASE_S = 30.0
#: Queueing delays, in seconds and in shortest round trips, below which the limit grows and above
#: which it shrinks. (The seconds are the scheduling of busy machines.)
_GROW_S, _GROW_TRIPS = 0.0015, 0.5
_SHRINK_S, _SHRINK_TRIPS = 0.004, 1.5
_SHRINK_TO = 0.8


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
        self._shrunk_at = 0.0

    def on_ack(self, sent_at: float, acked_bytes: int, under_way_bytes: int, now: float) -> None:
        """Records an acknowledgement.

        Args:
          sent_at: When the last of these bytes was sent, in seconds on a monotonic clock.
          acked_bytes: How many bytes it acknowledges.
          under_way_bytes: How many bytes were under way before it.
          now: The time.
        """
        trip = max(0.0, now - sent_at)
        if self._base_s is None or trip <= self._base_s or now - self._base_at > _BASE_S:
            self._base_s, self._base_at = trip, now
        queued = trip - self._base_s
        if queued > _SHRINK_S + _SHRINK_TRIPS * self._base_s:
            # Once per round trip: what is under way cannot come any sooner.
            if sent_at >= self._shrunk_at:
                self._shrunk_at = now
                self.limit_bytes = max(_LEAST_BYTES, int(self.limit_bytes * _SHRINK_TO))
            return
        is_idle = 2 * under_way_bytes < self.limit_bytes
        # (An idle link says nothing about a higher limit.)
        if queued < _GROW_S + _GROW_TRIPS * self._base_s and not is_idle:
            self.limit_bytes = min(self._most_bytes, self.limit_bytes + acked_bytes)
