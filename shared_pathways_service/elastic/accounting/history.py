"""The events of a run, which several processes may have told, on one axis of time."""

from __future__ import annotations

import dataclasses
import enum
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
)

__all__ = ["Life", "Mark", "Moment", "Sight", "SliceCount", "lives_of", "sights_of", "slice_counts"]

#: What a process may tell before its run starts: it looks at the checkpoints that there are.
_BEFORE_A_RUN: Final = (CheckpointKept, CheckpointQuarantined)


@dataclasses.dataclass(frozen=True)
class Moment:
    """An event, and when it was.

    Attributes:
      at: Seconds since the run's first event.
    """

    at: float
    event: Event


@dataclasses.dataclass(frozen=True)
class Life:
    """What one process told of one run of its manager, in order; at least one moment."""

    moments: Sequence[Moment]

    @property
    def start(self) -> float:
        """The first moment."""
        return self.moments[0].at

    @property
    def end(self) -> float:
        """The last moment."""
        return self.moments[-1].at

    @property
    def finished(self) -> bool:
        """Whether the run came to an end, good or bad: else the process was killed, or lives."""
        return any(isinstance(moment.event, RunDone) for moment in self.moments)


class Sight(enum.StrEnum):
    """What a timeline shows."""

    LOST = "lost"
    """A slice went down."""
    KILLED = "killed"
    """The process ended without a word."""
    RESTORED = "restored"
    """Training was taken back to a checkpoint or a snapshot."""
    GREW = "grew"
    """Slices that had come back were taken in."""
    SAVED = "saved"
    """A checkpoint was committed."""
    QUARANTINED = "quarantined"
    """A checkpoint could not be used."""


@dataclasses.dataclass(frozen=True)
class Mark:
    """Something to see at a point of the timeline.

    Attributes:
      at: Seconds since the run's first event.
      step: The step concerned, if one is.
      slice: The slice concerned, if one is.
    """

    at: float
    sight: Sight
    step: int | None = None
    slice: str | None = None


@dataclasses.dataclass(frozen=True)
class SliceCount:
    """How many slices train from a moment on.

    Attributes:
      at: Seconds since the run's first event.
    """

    at: float
    count: int


def lives_of(events: Iterable[Event]) -> list[Life]:
    """Puts events on one axis.

    A life begins with a `RunStarted`. Within it the monotonic clock counts; from one to
    the next, which may be another machine's, only the wall clock can. Time never runs backwards.

    Args:
      events: In the order in which they were written; those of other sources are passed over, as
        their clocks are others.
    """
    groups: list[list[Event]] = []
    # Whose these are shows by what comes next; at the very end they tell nothing of a run.
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
    # What came before the run may be another process' last word, whose clock was another.
    run = next((event for event in group if not isinstance(event, _BEFORE_A_RUN)), group[0])
    run_at = start + max(0.0, _wall(run) - _wall(group[0]))
    begun = False
    moments: list[Moment] = []
    at = start
    for event in group:
        begun |= event is run
        since = event.monotonic - run.monotonic if begun else _wall(event) - _wall(run)
        # Threads may write in another order than they looked at the clock.
        at = max(at, run_at + since)
        moments.append(Moment(at, event))
    return Life(moments)


def _wall(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()


def slice_counts(lives: Iterable[Life]) -> list[SliceCount]:
    """Returns the number of slices that train, at each change: none where no process lives."""
    counts: list[SliceCount] = []
    ended_at = 0.0
    for life in lives:
        using: set[str] = set()
        # From the last word of the process before, not from this one's first.
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
    """Returns what there is to see, in order."""
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
