"""Growth of a process: the last quarter of its samples against the first."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from statistics import median
from typing import Protocol

import psutil

__all__ = ["Growth", "Held", "Lap", "growth", "seconds_of"]


@dataclasses.dataclass(frozen=True)
class Held:
    """The usage of a process."""

    threads: int
    descriptors: int
    resident_mb: float

    @classmethod
    def of(cls, pid: int) -> Held:
        """Looks at a process."""
        process = psutil.Process(pid)
        return cls(
            process.num_threads(), process.num_fds(), round(process.memory_info().rss / 1e6, 1)
        )


@dataclasses.dataclass(frozen=True)
class Growth:
    """Of one figure, from a run's first quarter to its last.

    Attributes:
      first: The median of the first quarter of the samples.
      last: That of the last.
      allowed: How much more is still none.
    """

    first: float
    last: float
    allowed: float

    @property
    def flat(self) -> bool:
        """Whether there is none."""
        return self.last <= self.first + self.allowed

    def to_json(self) -> dict[str, float | bool]:
        """Returns its record."""
        values = {name: round(value, 2) for name, value in dataclasses.asdict(self).items()}
        return {**values, "flat": self.flat}


class Lap(Protocol):
    """A part of a run that does the same as the others."""

    @property
    def seconds(self) -> float:
        """From the beginning of the run to the end of this."""


def seconds_of(laps: Sequence[Lap]) -> list[float]:
    """Returns how long each lap took."""
    ends = [0.0, *(lap.seconds for lap in laps)]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def growth(values: Sequence[float], allowed: float) -> Growth:
    """Compares medians of a figure's first and last quarter: one odd sample does not count.

    Args:
      values: At least 4, in the order of time.
      allowed: In the figure's unit.
    """
    quarter = len(values) // 4
    if quarter == 0:
        raise ValueError(f"{len(values)} samples tell no growth: at least 4 are needed")
    return Growth(median(values[:quarter]), median(values[-quarter:]), allowed)
