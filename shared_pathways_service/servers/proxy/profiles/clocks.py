"""Estimates the offset of another process's clock from round trips, as NTP does. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["Offset", "Sample", "offset_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One round trip, in nanoseconds since 1970.

    Attributes:
      sent_ns: When the question was sent, by the clock of its sender.
      remote_ns: When it was answered, by the other clock.
      received_ns: When the answer arrived, by the clock of its receiver.
    """

    sent_ns: int
    remote_ns: int
    received_ns: int

    @property
    def round_trip_ns(self) -> int:
        """The time between question and answer; not negative, even if a clock was set back."""
        return max(0, self.received_ns - self.sent_ns)

    @property
    def offset_ns(self) -> int:
        """How far the other clock is ahead, if both ways took equally long."""
        return self.remote_ns - (self.sent_ns + self.received_ns) // 2


@dataclasses.dataclass(frozen=True, slots=True)
class Offset:
    """An estimate of how far another clock is ahead.

    Attributes:
      offset_ns: The estimate.
      error_ns: Its largest error.
    """

    offset_ns: int = 0
    error_ns: int = 0

    def plus(self, further: Offset) -> Offset:
        """Returns the offset of a third clock, which is ahead of the second one by `further`."""
        return Offset(self.offset_ns + further.offset_ns, self.error_ns + further.error_ns)


def offset_of(samples: Sequence[Sample]) -> Offset:
    """Returns the estimate of the shortest round trip.

    The true offset was within half of a round trip of that sample's estimate (RFC 5905, section 8).
    So the error of the result at the time of another sample is at most the sum of that one's half
    and of the difference of the estimates, which includes the drift of the clocks between.

    Args:
      samples: Round trips, at least one: half of them from the start of a profile, the others from
        its end.
    """
    best = min(samples, key=lambda sample: sample.round_trip_ns)
    middle = len(samples) // 2
    halves = [half for half in (samples[:middle], samples[middle:]) if half]
    error_ns = 0
    for half in halves:
        end = min(half, key=lambda sample: sample.round_trip_ns)
        apart_ns = abs(best.offset_ns - end.offset_ns)
        error_ns = max(error_ns, apart_ns + (end.round_trip_ns + 1) // 2)
    return Offset(best.offset_ns, error_ns)
