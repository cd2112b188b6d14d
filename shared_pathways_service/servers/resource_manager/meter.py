"""Counts the events that the resource manager handles and the decisions that it writes."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping

from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import KINDS
from shared_pathways_service.events.tenants import ExecutorLost, ExecutorStarted
from shared_pathways_service.metrics.families import Family, Histogram, Kind, Sample
from shared_pathways_service.servers.resource_manager.history_table import Numbered

__all__ = ["Meter", "labelled", "rm_family"]

_PREFIX = "sps_rm"
#: Seconds; a flush of a local disk takes 0.2 ms.
_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


#: Seconds; JAX takes a few to load.
_START_BOUNDS = (0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0)
#: How executors end: by a signal, with an exit code that is not 0, with exit code 0 (as when their
#: proxy has ended), or not known how.
_CAUSES = ("signal", "exit_code", "ended_cleanly", "unknown")
#: Stands for the names of reported events that are not known.
_OTHER = "other"


class Meter:
    """Counts events and written decisions since the start of the process."""

    def __init__(self) -> None:
        self._events: collections.Counter[str] = collections.Counter()
        # (From 0: the first of a kind would not be an increase if its series began with it.)
        kinds = [*sorted(KINDS), _OTHER]
        self._decisions = collections.Counter(dict.fromkeys(kinds, 0))
        self._executor_starts = Histogram(_START_BOUNDS)
        self._executor_losses = collections.Counter(dict.fromkeys(_CAUSES, 0))
        self._handled = Histogram(_BOUNDS)
        self._written = Histogram(_BOUNDS)

    def handled(self, kind: str, seconds: float) -> None:
        """Counts an event whose instructions were carried out."""
        self._events[kind] += 1
        self._handled.add(seconds)

    def announced(self, event: Event) -> None:
        """Counts an event of executors."""
        match event:
            case ExecutorStarted():
                self._executor_starts.add(event.duration_s or 0.0)
            case ExecutorLost():
                self._executor_losses[_cause_of(event.exit_code)] += 1

    def wrote(self, written: Iterable[Numbered], seconds: float) -> None:
        """Counts a write of decisions."""
        # A proxy may report events of any name; there must not be a time series for each.
        kinds = (decision.kind for _, decision in written)
        self._decisions.update(kind if kind in KINDS else _OTHER for kind in kinds)
        self._written.add(seconds)

    def families(self) -> list[Family]:
        """Returns the counters."""
        return [
            rm_family("events", "counter", "Events that went in.", labelled("event", self._events)),
            rm_family("decisions", "counter", "Decisions.", labelled("kind", self._decisions)),
            rm_family(
                "executor_start_seconds",
                "histogram",
                (
                    "From the assignment of a placement's executors until all serve or, if the "
                    "resource manager was away meanwhile, until it received their reports."
                ),
                self._executor_starts.samples(),
                "seconds",
            ),
            rm_family(
                "executor_losses",
                "counter",
                "Executors that ended and took their placement with them.",
                labelled("cause", self._executor_losses),
            ),
            rm_family(
                "event_handling_seconds",
                "histogram",
                "From an event's coming to the end of what it led to, writing included.",
                self._handled.samples(),
                "seconds",
            ),
            rm_family(
                "state_write_seconds",
                "histogram",
                "Writes of decisions into the state file.",
                self._written.samples(),
                "seconds",
            ),
        ]


def _cause_of(exit_code: int | None) -> str:
    if exit_code is None:
        return "unknown"
    if exit_code == 0:
        return "ended_cleanly"
    return "signal" if exit_code < 0 else "exit_code"


def labelled(label: str, counts: Mapping[str, int]) -> list[Sample]:
    """Returns one sample for each name, labelled with it."""
    return [Sample(count, {label: name}) for name, count in counts.items()]


def rm_family(name: str, kind: Kind, text: str, samples: list[Sample], unit: str = "") -> Family:
    """Returns a family of the resource manager's metrics, its name without their prefix."""
    full = _PREFIX if kind == "info" else f"{_PREFIX}_{name}"
    return Family(full, kind, text, samples, unit)
