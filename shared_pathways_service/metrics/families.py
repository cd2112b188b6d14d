"""Measurements as families of samples, independent of their transport."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

__all__ = ["Family", "Histogram", "Kind", "Sample", "labelled", "values_of"]

Kind = Literal["counter", "gauge", "info", "histogram"]
#: The suffix of a sample's name, after its family's name.
_SUFFIX: Mapping[str, str] = {"counter": "_total", "gauge": "", "info": "_info", "histogram": ""}


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One number; the suffix is ``_bucket``, ``_count`` or ``_sum`` in a histogram."""

    value: float
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    suffix: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A metric family.

    Attributes:
      name: Without the suffix of its samples; ends with its unit, if it has one.
      kind: A counter only increases, from 0 at the start of the process.
      help: One sentence.
      unit: ``seconds``, ``bytes``, or empty.
    """

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample]
    unit: str = ""

    def __post_init__(self) -> None:
        """Checks the name and the unit."""
        if self.unit and not self.name.endswith(f"_{self.unit}"):
            raise ValueError(f"{self.name} does not end with its unit {self.unit}")

    @property
    def sample_name(self) -> str:
        """The name of its samples."""
        return self.name + _SUFFIX[self.kind]


class Histogram:
    """A histogram of durations.

    Args:
      bounds: Upper bounds of its buckets, ascending; infinity is added as the last.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Counts one value."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> list[Sample]:
        """Returns its samples; buckets are cumulative."""
        sums = list(itertools.accumulate(self._counts))
        bounds = [*(repr(bound) for bound in self._bounds), "+Inf"]
        return [
            *(
                Sample(count, {"le": bound}, "_bucket")
                for bound, count in zip(bounds, sums, strict=True)
            ),
            Sample(sums[-1], suffix="_count"),
            Sample(self._sum, suffix="_sum"),
        ]


def labelled(families_of: Mapping[str, Iterable[Family]], label: str) -> list[Family]:
    """Merges the families of several sources; `label` gets the source's name in each sample."""
    merged: dict[str, tuple[Family, list[Sample]]] = {}
    for source, families in families_of.items():
        for family in families:
            _, samples = merged.setdefault(family.name, (family, []))
            samples += [
                Sample(one.value, {label: source, **one.labels}, one.suffix)
                for one in family.samples
            ]
    return [dataclasses.replace(family, samples=samples) for family, samples in merged.values()]


def values_of(families: Iterable[Family]) -> dict[str, object]:
    """Returns the numbers for JSON: by the name of the sample, then by its labels' values.

    A sample without labels is a number, an info its labels.
    """
    values: dict[str, object] = {}
    for family in families:
        if family.kind == "info":
            values[family.sample_name] = dict(family.samples[0].labels)
        elif any(sample.labels for sample in family.samples) or not family.samples:
            values[family.sample_name] = {
                ",".join([*s.labels.values(), *filter(None, [s.suffix])]): _plain(s.value)
                for s in family.samples
            }
        else:
            values[family.sample_name] = _plain(family.samples[0].value)
    return values


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value
