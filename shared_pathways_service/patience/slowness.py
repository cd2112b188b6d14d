"""Estimates how much slower than usual things happen, from measurements of one process. Pure."""

from __future__ import annotations

import dataclasses

__all__ = ["MOST", "STALL_S", "Sample", "Slowness"]

#: The largest factor that is measured.
MOST = 10.0
#: Seconds by which a wake-up is late if it counts as a stall.
STALL_S = 0.5
#: Seconds for which an observation counts.
_KEPT_S = 60.0
#: Processor time that is added to what this process used, so that a short wait of a process that
#: hardly runs does not look like a slow machine.
_MARGIN_S = 0.1
#: The most that the load of the machine alone counts: who has to wait how long is not known, and
#: time-outs have a margin.
_MOST_BY_LOAD = 4.0
#: A machine up to this many times slower than the one on which the time-outs were chosen is usual.
_USUAL_PACE = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """Measurements at one time.

    Attributes:
      at: Seconds on a monotonic clock.
      ran_s: Seconds for which this process has run since its start.
      queued_s: Seconds for which it could have run since its start, but had no processor.
      load: Threads per processor of the machine that run or wait for one, as an average over a
        minute.
    """

    at: float
    ran_s: float = 0.0
    queued_s: float = 0.0
    load: float = 0.0


class Slowness:
    """Turns samples and stalls into a factor, which is 1 on a quiet machine. Thread-safe.

    Args:
      began: The time at which the process started to count, on the samples' clock.
      pace: How many times longer a calculation takes here than on the machine where the time-outs
        were chosen.
    """

    def __init__(self, began: float, pace: float = 1.0) -> None:
        self._pace = max(1.0, pace / _USUAL_PACE)
        self._last = Sample(at=began)
        # The time and the value of each observation. (Replaced, never changed: one thread may read
        # it while another one observes. No lock, which a fork could leave locked in the child.)
        self._observed: tuple[tuple[float, float], ...] = ()

    @property
    def sampled_at(self) -> float:
        """The time of the last sample."""
        return self._last.at

    def sample(self, sample: Sample) -> None:
        """Takes measurements into account."""
        last, self._last = self._last, sample
        ran_s = max(0.0, sample.ran_s - last.ran_s)
        queued_s = max(0.0, sample.queued_s - last.queued_s)
        own = 1.0 + queued_s / (ran_s + _MARGIN_S)
        self._observe(sample.at, max(min(sample.load, _MOST_BY_LOAD), own))

    def stall(self, now: float, late_s: float) -> None:
        """Takes a wake-up into account that was late: a stall adds 1 per second."""
        if late_s >= STALL_S:
            self._observe(now, 1.0 + late_s)

    def factor(self, now: float) -> float:
        """Returns the factor, from 1 to `MOST`, rounded to a tenth so that it reads well."""
        recent = (value for at, value in self._observed if at >= now - _KEPT_S)
        return round(min(MOST, self._pace * max(recent, default=1.0)), 1)

    def _observe(self, at: float, value: float) -> None:
        # (Smaller ones from before have no influence any more.)
        kept = [old for old in self._observed if old[0] >= at - _KEPT_S and old[1] > value]
        self._observed = (*kept, (at, value))
