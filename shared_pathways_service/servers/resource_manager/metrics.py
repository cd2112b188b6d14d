"""What the resource manager counts, and how it stands, for a scraper: docs/metrics.md."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from shared_pathways_service.core.openmetrics import Family, Histogram, Kind, Sample
from shared_pathways_service.core.rm.census import Census
from shared_pathways_service.core.rm.states import SliceState, TenantState
from shared_pathways_service.servers.resource_manager.history import Numbered
from shared_pathways_service.version import __version__

if TYPE_CHECKING:
    from shared_pathways_service.servers.resource_manager.authority import Authority

__all__ = ["Meter", "families"]

_PREFIX = "sps_rm"
#: Seconds; a flush of a local disk takes 0.2 ms.
_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Meter:
    """Counts what goes in and what comes of it, since the start of the process."""

    def __init__(self) -> None:
        self._events: collections.Counter[str] = collections.Counter()
        self._decisions: collections.Counter[str] = collections.Counter()
        self._handled = Histogram(_BOUNDS)
        self._written = Histogram(_BOUNDS)

    def handled(self, kind: str, seconds: float) -> None:
        """Counts an event that was decided on and carried out."""
        self._events[kind] += 1
        self._handled.add(seconds)

    def wrote(self, written: Iterable[Numbered], seconds: float) -> None:
        """Counts a write of decisions."""
        self._decisions.update(decision.kind for _, decision in written)
        self._written.add(seconds)

    def families(self) -> list[Family]:
        """Returns what was counted."""
        return [
            _family("events", "counter", "Events that went in.", _by("event", self._events)),
            _family("decisions", "counter", "Decisions.", _by("kind", self._decisions)),
            _family(
                "event_handling_seconds",
                "histogram",
                "From an event's coming to the end of what it led to, writing included.",
                self._handled.samples(),
                "seconds",
            ),
            _family(
                "state_write_seconds",
                "histogram",
                "Writes of decisions into the state file.",
                self._written.samples(),
                "seconds",
            ),
        ]


def families(authority: Authority) -> list[Family]:
    """Returns all that is told."""
    return [
        _family("info", "info", "What runs.", [Sample(1, {"version": __version__})]),
        *_of_census(authority.census(), authority.capacity),
        _family("streams", "gauge", "Open streams.", _by("of", authority.streams())),
        _family(
            "history_decisions",
            "gauge",
            "Decisions that the history keeps.",
            [Sample(len(authority.history))],
        ),
        *authority.meter.families(),
    ]


def _of_census(census: Census, capacity: Mapping[str, int]) -> list[Family]:
    return [
        _family(
            "slices",
            "gauge",
            "Slices that are known.",
            [
                Sample(census.slices.get((kind, state), 0), {_TYPE: kind, "state": state})
                for kind, state in itertools.product(capacity, SliceState)
            ],
        ),
        _family("slices_wanted", "gauge", "Slices that there should be.", _by(_TYPE, capacity)),
        _family("slices_held", "gauge", "Slices that a tenant holds.", _by(_TYPE, census.held)),
        _family(
            "tenants",
            "gauge",
            "Tenants that are known.",
            [Sample(census.tenants.get(state, 0), {"state": state}) for state in TenantState],
        ),
        _family("queue_length", "gauge", "Tenants in the queue.", [Sample(census.queue_length)]),
        _family(
            "queue_oldest_wait_seconds",
            "gauge",
            "How long the one that waits longest has waited; 0: nobody waits.",
            [Sample(census.oldest_wait_s)],
            "seconds",
        ),
        _family(
            "recovering",
            "gauge",
            "1 while nothing is granted after a restart.",
            [Sample(census.recovering)],
        ),
    ]


_TYPE = "instance_type"


def _by(label: str, counts: Mapping[str, int]) -> list[Sample]:
    return [Sample(count, {label: name}) for name, count in counts.items()]


def _family(name: str, kind: Kind, text: str, samples: list[Sample], unit: str = "") -> Family:
    full = _PREFIX if kind == "info" else f"{_PREFIX}_{name}"
    return Family(full, kind, text, samples, unit)
