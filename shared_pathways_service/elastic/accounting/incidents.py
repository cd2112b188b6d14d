"""Finds the interruptions of a run, and the time to repair each."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from shared_pathways_service.elastic.accounting.history import Moment
from shared_pathways_service.events.training import (
    AttemptFailed,
    AttemptStarted,
    RunDone,
    SliceActive,
    SliceDown,
    SliceHealthEvent,
    SliceSuspect,
    TrainingRetried,
    TrainingStep,
)

__all__ = ["Incident", "IncidentLog", "Repair", "repairs_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Incident:
    """One interruption, including failures during its recovery.

    Attributes:
      cause: ``slice_down``, ``scale_up``, ``proxy``, ``process`` (it was killed), or another one
        that the events name.
      at_s: When it began, in seconds since the run's first event: with the error, with the slice
        that was down before it, or with the last event of a process that was killed.
      repair_s: Seconds until the next completed step; None: there was none.
      step: The last step completed before; None: there was none.
      errors: The number of errors, including the first.
      lost_steps: Completed steps that had to be repeated.
      slices: The slices that were down.
    """

    cause: str
    at_s: float
    repair_s: float | None = None
    step: int | None = None
    errors: int = 0
    lost_steps: int = 0
    slices: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repair:
    """Statistics of the time to repair some incidents, in seconds."""

    count: int
    mean_s: float
    median_s: float
    max_s: float


def repairs_of(incidents: Iterable[Incident]) -> dict[str, Repair]:
    """Returns the time to repair by cause, for repaired incidents."""
    by_cause: dict[str, list[float]] = {}
    for incident in incidents:
        if incident.repair_s is not None:
            by_cause.setdefault(incident.cause, []).append(incident.repair_s)
    return {
        cause: Repair(
            count=len(times),
            mean_s=statistics.fmean(times),
            median_s=statistics.median(times),
            max_s=max(times),
        )
        for cause, times in sorted(by_cause.items())
    }


class IncidentLog:
    """Detects incidents in a run's events, which are passed in order."""

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self._open: Incident | None = None
        self._step: int | None = None
        self._using: frozenset[str] = frozenset()
        self._suspect: dict[str, float] = {}
        self._down: dict[str, float] = {}

    @property
    def sign_at(self) -> float | None:
        """When the first sign of a failure of a used slice came; None: there is none now."""
        return min([*self._suspect.values(), *self._down.values()], default=None)

    def see(self, moment: Moment) -> None:
        """Processes the next event."""
        event = moment.event
        match event:
            case SliceSuspect() | SliceDown() | SliceActive():
                self._slice(event, moment.at)
            case AttemptFailed() if event.retries:
                self._error(event, moment.at)
            case TrainingRetried() if self._open is None:
                self._begin(event.cause or "unknown", moment.at)
            case AttemptStarted():
                # Slices that were down before are not part of this attempt.
                self._forget()
                self._using = frozenset(map(str, event.slices))
            case TrainingStep():
                self._repaired(moment)
            case RunDone():
                self.end()

    def lost(self, steps: int) -> None:
        """Records completed steps that have to be repeated."""
        if self._open is not None:
            lost_steps = self._open.lost_steps + steps
            self._open = dataclasses.replace(self._open, lost_steps=lost_steps)

    def killed(self, at: float) -> None:
        """Records that a process was killed, and another one continued."""
        self._forget()
        if self._open is None:
            self._begin("process", at)

    def end(self) -> None:
        """Records the end of the events."""
        if self._open is not None:
            self.incidents.append(self._open)
            self._open = None

    def _forget(self) -> None:
        self._suspect.clear()
        self._down.clear()

    def _slice(self, event: SliceHealthEvent, at: float) -> None:
        name = str(event.slice)
        if self._using and name not in self._using:
            return
        if isinstance(event, SliceSuspect):
            self._suspect.setdefault(name, at)
        elif isinstance(event, SliceDown):
            self._down.setdefault(name, at)
            self._add_slices([name])
        else:
            self._suspect.pop(name, None)
            self._down.pop(name, None)

    def _error(self, event: AttemptFailed, at: float) -> None:
        verdict = event.verdict or "unknown"
        named = sorted(set(map(str, event.slices)))
        if self._open is None:
            self._begin({"slice": "slice_down"}.get(verdict, verdict), at, named)
        self._add_slices(named)
        assert self._open is not None
        self._open = dataclasses.replace(self._open, errors=self._open.errors + 1)

    def _begin(self, cause: str, at: float, named: Sequence[str] = ()) -> None:
        down = {name: at for name, at in self._down.items() if not named or name in named}
        if cause in {"scale_up", "process"}:
            down = {}
        self._open = Incident(
            cause=cause, at_s=min([at, *down.values()]), step=self._step, slices=tuple(down)
        )

    def _add_slices(self, names: Iterable[str]) -> None:
        if self._open is not None and self._open.cause != "scale_up":
            slices = tuple(dict.fromkeys([*self._open.slices, *names]))
            self._open = dataclasses.replace(self._open, slices=slices)

    def _repaired(self, moment: Moment) -> None:
        self._step = moment.event.step
        if self._open is not None:
            repair_s = moment.at - self._open.at_s
            self._open = dataclasses.replace(self._open, repair_s=repair_s)
            self.end()
