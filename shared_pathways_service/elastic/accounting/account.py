"""Assigns every second of a run to a cause."""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from shared_pathways_service.elastic.accounting.history import Life, Moment
from shared_pathways_service.elastic.accounting.incidents import IncidentLog
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptFailed,
    AttemptStarted,
    CheckpointSaved,
    LoopEvent,
    Reconnected,
    SnapshotTaken,
    StateRestored,
    TrainingEvent,
    TrainingRetried,
    TrainingStep,
    WaitDone,
    WaitStarted,
)

__all__ = ["Account", "Cause"]


class Cause(enum.StrEnum):
    """What time was spent on, other than steps whose results survived."""

    STARTUP = "startup"
    """From the process's first event to its first step, except for the causes below."""
    COMPILE = "compile"
    """The time of an attempt's first step above the median of its others."""
    LOST_STEPS = "lost_steps"
    """Steps that were repeated after a rewind."""
    WAITING = "waiting"
    """Waiting for slices."""
    DETECT = "detect"
    """From the last step to the first sign of a failure, including a failed step."""
    CONFIRM = "confirm"
    """From there until the cause was known and the attempt had ended."""
    RECONNECT = "reconnect"
    """Connecting to a new proxy."""
    RESTORE = "restore"
    """Restoring state, and other work before an attempt's first step."""
    CHECKPOINT = "checkpoint"
    """Training blocked by a checkpoint."""
    SNAPSHOT = "snapshot"
    """Training blocked by a snapshot."""
    DOWN = "down"
    """No process: from the last event of one to the first event of the next."""
    OTHER = "other"
    """Between steps: data, evaluation, other work of the program."""


_BLOCKING: Mapping[type[TrainingEvent], Cause] = {
    CheckpointSaved: Cause.CHECKPOINT,
    SnapshotTaken: Cause.SNAPSHOT,
}


@dataclasses.dataclass(frozen=True)
class _Done:
    """A completed step: its seconds without interruptions, and its attempt, counted over the run.

    An attempt's first step may compile.
    """

    step: int
    seconds: float
    attempt: int
    first: bool


class Account:
    """Adds up the lives of a run; every second is counted once.

    Attributes:
      kept: Completed steps whose results survived, in order.
      lost: Completed steps that were repeated.
    """

    def __init__(self) -> None:
        self.kept: list[_Done] = []
        self.lost: list[_Done] = []
        self.log = IncidentLog()
        self._spent: dict[Cause, list[float]] = {cause: [] for cause in Cause}
        self._attempt = 0
        #: The cause of time that no event claims.
        self._stage = Cause.STARTUP
        self._waiting = False
        self._at = 0.0
        self._blocked = _Blocked(())

    def add(self, life: Life) -> None:
        """Adds the events of the next process."""
        self._spent[Cause.DOWN].append(life.start - self._at)
        self._at = life.start
        self._stage, self._waiting = Cause.STARTUP, False
        self._blocked = _Blocked(life.moments)
        for moment in life.moments:
            if isinstance(moment.event, LoopEvent):
                self._follow(moment)
            self.log.see(moment)
        self._spend(life.end)

    def killed(self) -> None:
        """Records that the process was killed, and another one continued."""
        self.log.killed(self._at)

    def close(self) -> tuple[float, dict[Cause, float]]:
        """Returns the seconds of steps whose results survived, and the other seconds by cause."""
        self.log.end()
        usual = self._usual_seconds()
        good: list[float] = []
        for done, seconds in itertools.chain(
            ((done, good) for done in self.kept),
            ((done, self._spent[Cause.LOST_STEPS]) for done in self.lost),
        ):
            work = min(done.seconds, usual.get(done.attempt, 0.0)) if done.first else done.seconds
            seconds.append(work)
            self._spent[Cause.COMPILE].append(done.seconds - work)
        return math.fsum(good), {cause: math.fsum(times) for cause, times in self._spent.items()}

    def _usual_seconds(self) -> dict[int, float]:
        """Returns the usual duration of a step per attempt, or of all after a single step."""
        taken: dict[int, list[float]] = collections.defaultdict(list)
        for done in (*self.kept, *self.lost):
            if not done.first:
                taken[done.attempt].append(done.seconds)
        every = [seconds for times in taken.values() for seconds in times]
        overall = statistics.median(every) if every else 0.0
        usual = dict.fromkeys(range(self._attempt + 1), overall)
        return usual | {attempt: statistics.median(times) for attempt, times in taken.items()}

    def _follow(self, moment: Moment) -> None:
        """Assigns the time up to an event, and records the cause of the time after it."""
        event, at = moment.event, moment.at
        match event:
            case AttemptStarted():
                self._begin_attempt(event, at)
            case StateRestored():
                self._restored(event, at)
            case TrainingStep():
                self._step(event, at)
            case AttemptFailed() if event.retries:
                self._broke(at)
            case TrainingRetried():
                self._retry(event, at)
            case WaitStarted():
                self._spend(at)
                self._waiting = True
            case WaitDone():
                self._spend(at, Cause.WAITING, event.duration_s)
                self._waiting = False
            case Reconnected():
                self._spend(at, Cause.RECONNECT, event.duration_s)
            case _:
                self._spend(at)

    def _begin_attempt(self, event: Event, at: float) -> None:
        self._spend(at, Cause.WAITING, event.duration_s)
        self._waiting = False
        self._attempt += 1
        if self._stage is not Cause.STARTUP:
            self._stage = Cause.RESTORE

    def _restored(self, event: StateRestored, at: float) -> None:
        begins = self._stage is Cause.STARTUP and event.origin == "initial"
        self._spend(at, Cause.STARTUP if begins else Cause.RESTORE, event.duration_s)
        if event.step is not None:
            self._rewind(event.step)

    def _retry(self, event: TrainingRetried, at: float) -> None:
        if not event.scales_up and self._stage is Cause.OTHER:
            self._broke(at)
        self._spend(at)
        self._waiting = False
        self._stage = Cause.CONFIRM

    def _broke(self, at: float) -> None:
        if self._waiting:
            self._spend(at)
        self._waiting = False
        self._stage = Cause.DETECT
        sign_at = self.log.sign_at
        self._spend(at if sign_at is None else sign_at)
        self._stage = Cause.CONFIRM
        self._spend(at)

    def _step(self, event: TrainingStep, at: float) -> None:
        step = event.step
        if step is None:
            step = self.kept[-1].step + 1 if self.kept else 1
        self._rewind(step - 1)
        free = self._free(at)
        seconds = free if event.duration_s is None else _claim(event.duration_s, free)
        self._spent[self._idle].append(free - seconds)
        self.kept.append(_Done(step, seconds, self._attempt, event.first is True))
        self._waiting = False
        self._stage = Cause.OTHER

    def _rewind(self, step: int) -> None:
        """Records that training continues after an earlier step."""
        lost = list(itertools.takewhile(lambda done: done.step > step, reversed(self.kept)))
        if lost:
            del self.kept[-len(lost) :]
            self.lost += lost
            self.log.lost(len(lost))

    @property
    def _idle(self) -> Cause:
        return Cause.WAITING if self._waiting else self._stage

    def _spend(self, until: float, cause: Cause | None = None, most: float | None = None) -> None:
        """Assigns the time since the last event: up to `most` seconds of it to `cause`."""
        free = self._free(until)
        if cause is not None:
            claimed = _claim(most, free)
            self._spent[cause].append(claimed)
            free -= claimed
        self._spent[self._idle].append(free)

    def _free(self, until: float) -> float:
        """Advances to a time; returns the seconds until then in which training was not blocked."""
        until = max(until, self._at)
        free = until - self._at
        for cause, seconds in self._blocked.between(self._at, until):
            self._spent[cause].append(seconds)
            free -= seconds
        self._at = until
        return max(free, 0.0)


def _claim(seconds: float | None, free: float) -> float:
    """Returns how many of the free seconds an event claims."""
    return min(seconds, free) if seconds is not None and seconds > 0 else 0.0


class _Blocked:
    """The times in which saves blocked training; read once, in order."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        spans = []
        for moment in moments:
            event = moment.event
            if not isinstance(event, CheckpointSaved | SnapshotTaken):
                continue
            seconds = event.blocked_s or 0.0
            if 0 < seconds < math.inf:
                start = moment.at - max(event.duration_s or 0.0, seconds)
                spans.append((start, start + seconds, _BLOCKING[type(event)]))
        self._spans = collections.deque(sorted(spans))

    def between(self, start: float, end: float) -> Iterator[tuple[Cause, float]]:
        """Yields seconds by cause; concurrent saves are counted once."""
        while self._spans and self._spans[0][0] < end:
            from_, to, cause = self._spans.popleft()
            held = min(to, end) - max(from_, start)
            if held > 0:
                yield cause, held
                start = min(to, end)
            if to > end:
                self._spans.appendleft((end, to, cause))
                return
