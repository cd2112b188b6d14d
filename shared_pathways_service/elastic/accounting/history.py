"""Orders the events of a run, possibly of several processes, on one time axis."""

from __future__ import annotations

import dataclasses
import enum
import math
import statistics
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptStarted,
    CheckpointKept,
    CheckpointQuarantined,
    CheckpointSaved,
    RunDone,
    RunStarted,
    SliceDown,
    StateRestored,
    TrainingRetried,
    TrainingStep,
)

__all__ = [
    "Life",
    "LossPoint",
    "Mark",
    "Moment",
    "Sight",
    "SliceCount",
    "lives_of",
    "loss_curve",
    "sights_of",
    "slice_counts",
]

#: Points of a loss curve at most.
_POINTS: Final = 400

#: Events before a run starts, when a process looks at existing checkpoints.
_BEFORE_A_RUN: Final = (CheckpointKept, CheckpointQuarantined)


@dataclasses.dataclass(frozen=True)
class Moment:
    """An event, and the seconds from the run's first event to it."""

    at: float
    event: Event


@dataclasses.dataclass(frozen=True)
class Life:
    """The events of one process in one run of its manager, in order; at least one."""

    moments: Sequence[Moment]

    @property
    def start(self) -> float:
        """The first event."""
        return self.moments[0].at

    @property
    def end(self) -> float:
        """The last event."""
        return self.moments[-1].at

    @property
    def finished(self) -> bool:
        """Whether the run ended, well or not; otherwise the process was killed, or lives."""
        return any(isinstance(moment.event, RunDone) for moment in self.moments)


class Sight(enum.StrEnum):
    """A point of interest on a timeline."""

    LOST = "lost"
    """A slice went down."""
    KILLED = "killed"
    """The process was killed."""
    RESTORED = "restored"
    """Training was rewound to a checkpoint or a snapshot."""
    GREW = "grew"
    """Returned slices were added."""
    SAVED = "saved"
    """A checkpoint was committed."""
    QUARANTINED = "quarantined"
    """A checkpoint could not be used."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point of interest at a time, in seconds since the run's first event."""

    at: float
    sight: Sight
    step: int | None = None
    slice: str | None = None


@dataclasses.dataclass(frozen=True)
class SliceCount:
    """The number of training slices from a time on, in seconds since the run's first event."""

    at: float
    count: int


@dataclasses.dataclass(frozen=True)
class LossPoint:
    """The mean loss of one or more successive steps, and the time and number of the last one."""

    at: float
    step: int
    loss: float


def lives_of(events: Iterable[Event]) -> list[Life]:
    """Puts events on one time axis.

    A life begins with a `RunStarted`. Within a life the monotonic clock is used; between lives,
    which may be on different machines, only the wall clock can be. Time never goes back.

    Events of other sources are ignored, because their clocks differ.
    """
    groups: list[list[Event]] = []
    # The next event shows to which life these belong; at the very end they belong to none.
    before: list[Event] = []
    for event in events:
        if event.source != "elastic":
            continue
        before.append(event)
        if isinstance(event, _BEFORE_A_RUN):
            continue
        if isinstance(event, RunStarted) or not groups:
            groups.append([])
        groups[-1] += before
        before = []
    lives: list[Life] = []
    for group in groups:
        offset = _wall(group[0]) - _wall(groups[0][0])
        lives.append(_life(group, max(offset, lives[-1].end if lives else 0.0)))
    return lives


def _life(group: Sequence[Event], start: float) -> Life:
    # Earlier events may be another process's last ones, with another clock.
    run = next((event for event in group if not isinstance(event, _BEFORE_A_RUN)), group[0])
    run_at = start + max(0.0, _wall(run) - _wall(group[0]))
    begun = False
    moments: list[Moment] = []
    at = start
    for event in group:
        begun |= event is run
        since = event.monotonic - run.monotonic if begun else _wall(event) - _wall(run)
        # Threads may write events in another order than that of their times.
        at = max(at, run_at + since)
        moments.append(Moment(at, event))
    return Life(moments)


def _wall(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()


def loss_curve(lives: Iterable[Life]) -> list[LossPoint]:
    """Returns the losses of steps whose results survived, as at most 400 points."""
    kept: list[LossPoint] = []
    for life in lives:
        for at, event in ((moment.at, moment.event) for moment in life.moments):
            if isinstance(event, TrainingStep) and event.step is not None:
                # Training was rewound: steps from here on are repeated.
                while kept and kept[-1].step >= event.step:
                    kept.pop()
                if isinstance(event.loss, int | float) and math.isfinite(event.loss):
                    kept.append(LossPoint(at, event.step, event.loss))
    size = -(-len(kept) // _POINTS) or 1
    parts = (kept[first : first + size] for first in range(0, len(kept), size))
    return [
        dataclasses.replace(part[-1], loss=statistics.fmean(point.loss for point in part))
        for part in parts
    ]


def slice_counts(lives: Iterable[Life]) -> list[SliceCount]:
    """Returns the number of training slices at each change; 0 while no process lives."""
    counts: list[SliceCount] = []
    ended_at = 0.0
    for life in lives:
        using: set[str] = set()
        # From the last event of the process before, not from this one's first.
        _note(counts, ended_at, 0)
        for moment in life.moments:
            event = moment.event
            if isinstance(event, AttemptStarted):
                using = set(map(str, event.slices))
            elif isinstance(event, SliceDown):
                using.discard(str(event.slice))
            elif isinstance(event, RunDone):
                using = set()
            _note(counts, moment.at, len(using))
        ended_at = life.end
    return counts


def _note(counts: list[SliceCount], at: float, count: int) -> None:
    if counts and counts[-1].at == at:
        counts.pop()
    if not counts or counts[-1].count != count:
        counts.append(SliceCount(at, count))


def sights_of(lives: Sequence[Life]) -> list[Mark]:
    """Returns the points of interest, in order."""
    marks: list[Mark] = []
    for number, life in enumerate(lives):
        for moment in life.moments:
            event = moment.event
            sight = _sight(event)
            if sight is not None:
                where = None if event.slice is None else str(event.slice)
                marks.append(Mark(moment.at, sight, event.step, where))
        if not life.finished and number + 1 < len(lives):
            marks.append(Mark(life.end, Sight.KILLED))
    return marks


def _sight(event: Event) -> Sight | None:
    match event:
        case SliceDown():
            return Sight.LOST
        case StateRestored() if event.origin != "initial":
            return Sight.RESTORED
        case TrainingRetried() if event.scales_up:
            return Sight.GREW
        case CheckpointSaved():
            return Sight.SAVED
        case CheckpointQuarantined():
            return Sight.QUARANTINED
    return None
