"""Events of an elastic training run, whose ledger records them for `sps report`."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.base import Event
from shared_pathways_service.events.codec import wire

__all__ = [
    "AttemptFailed",
    "AttemptStarted",
    "BarrierSlow",
    "CheckpointFailed",
    "CheckpointKept",
    "CheckpointQuarantined",
    "CheckpointRestoring",
    "CheckpointSaved",
    "LoopEvent",
    "Reconnected",
    "RunDone",
    "RunStarted",
    "SaveFailed",
    "SliceActive",
    "SliceAwaited",
    "SliceDown",
    "SliceHealthEvent",
    "SliceLeftOut",
    "SliceReturning",
    "SliceSuspect",
    "SnapshotFailed",
    "SnapshotTaken",
    "StateRestored",
    "TrainingEvent",
    "TrainingRetried",
    "TrainingStep",
    "WaitDone",
    "WaitEvent",
    "WaitStarted",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingEvent(Event):
    """An event of an elastic training run."""

    source: str = "elastic"


class LoopEvent(TrainingEvent):
    """An event of the training thread, whose activities are sequential.

    Other events occur concurrently.
    """


# ---- the run


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunStarted(LoopEvent, name="elastic.run.started"):
    """A process began or resumed a run at `step`.

    Attributes:
      run_name: `Options.run_name`.
      enabled: Whether training survives the loss of slices.
      slices: Number of existing slices.
      policy: The reaction to lost slices, e.g. ``shrink``.
      min_slices: Minimum number of slices for training.
      max_slices: Maximum number of slices that it uses.
      max_attempts: Attempts that may fail.
      pid: The process id.
    """

    run_name: str | None = wire(default=None, always=True)
    enabled: bool = False
    slices: int | None = None
    policy: str | None = None
    min_slices: int | None = None
    max_slices: int | None = None
    max_attempts: int | None = None
    pid: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunDone(LoopEvent, name="elastic.run.done"):
    """Training ended, `duration_s` after it began in this process.

    Attributes:
      outcome: ``done``, ``failed`` or ``interrupted``.
    """

    outcome: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptStarted(LoopEvent, name="elastic.attempt.started"):
    """An attempt began, after waiting `duration_s` for its slices.

    Attributes:
      attempt: The attempt's number: 1 plus the number of earlier failures.
      max_attempts: Attempts that may fail.
      cause: Why there is another attempt: ``start``, ``slice_down``, ``scale_up`` or ``proxy``.
      slices: Indices of the slices that it trains on.
      slice_count: Number of these slices.
      down_events: Attempts that a lost slice or proxy has ended so far.
    """

    attempt: int | None = None
    max_attempts: int | None = None
    cause: str | None = None
    slices: tuple[int, ...] = ()
    slice_count: int | None = None
    down_events: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StateRestored(LoopEvent, name="elastic.restored"):
    """An attempt restored its state, which follows `step`.

    Attributes:
      origin: ``initial``, ``live``, ``snapshot`` or ``checkpoint``.
      lost_steps: Completed steps that must be repeated.
    """

    origin: str | None = None
    lost_steps: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingStep(LoopEvent, name="elastic.step"):
    """A step was completed, `duration_s` after the previous one.

    Attributes:
      loss: The loss; None: the training function did not report it.
      tflops_per_device: 10^12 floating-point operations per second; None: unknown.
      slice_count: Number of slices that it ran on.
      down_events: Attempts that a lost slice or proxy has ended so far.
      first: Whether it is the attempt's first step, which may include compilation.
    """

    loss: float | None = None
    tflops_per_device: float | None = None
    slice_count: int | None = None
    down_events: int | None = None
    first: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptFailed(LoopEvent, name="elastic.error"):
    """An attempt ended with an error; `reason` is its text.

    Attributes:
      error_type: The class of the error.
      verdict: What failed: ``slice``, ``proxy``, ``user`` or ``unclear``.
      decision: ``retry`` or ``raise``.
      slices: Indices of the slices that failed.
    """

    error_type: str | None = None
    verdict: str | None = None
    decision: str | None = None
    slices: tuple[int, ...] = wire(default=(), always=True)

    @property
    def retries(self) -> bool:
        """Whether training continues."""
        return self.decision == "retry"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRetried(LoopEvent, name="elastic.retry"):
    """Training continues with another attempt.

    Attributes:
      attempt: The number of the next attempt.
      max_attempts: Attempts that may fail.
      cause: ``slice_down``, ``scale_up`` or ``proxy``.
    """

    attempt: int | None = None
    max_attempts: int | None = None
    cause: str | None = None

    @property
    def scales_up(self) -> bool:
        """Whether it continues because more slices are available."""
        return self.cause == "scale_up"


class Reconnected(LoopEvent, name="elastic.reconnected"):
    """New devices are available after the loss of the proxy."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WaitEvent(LoopEvent):
    """An event of a wait for slices.

    Attributes:
      have: Number of slices that answer.
      want: Number of slices that must answer.
    """

    have: int | None = None
    want: int | None = None


class WaitStarted(WaitEvent, name="elastic.wait.started"):
    """Too few slices answer, so training waits for more."""


class WaitDone(WaitEvent, name="elastic.wait.done"):
    """Enough slices answer."""


class BarrierSlow(TrainingEvent, name="elastic.barrier.slow"):
    """A step takes longer than `Options.health_timeout`; `reason` says whether slices answer."""


# ---- slices


class SliceHealthEvent(TrainingEvent):
    """A change of a slice's health, as observed by training."""


class SliceActive(SliceHealthEvent, name="slice.active"):
    """The slice answers, and is in use or available."""


class SliceSuspect(SliceHealthEvent, name="slice.suspect"):
    """An error occurred that may come from the slice."""


class SliceAwaited(SliceHealthEvent, name="slice.awaited"):
    """The executors of the slice start: it does not answer yet, and does not count as lost."""


class SliceDown(SliceHealthEvent, name="slice.down"):
    """The slice does not answer, or answers with an error."""


class SliceReturning(SliceHealthEvent, name="slice.returning"):
    """The slice answers again; the next attempt uses it."""


class SliceLeftOut(TrainingEvent, name="slice.left_out"):
    """The slice was lost too often, and is excluded for `duration_s`."""


# ---- checkpoints and snapshots


class SaveFailed(TrainingEvent):
    """A state could not be saved; training continues."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointKept(TrainingEvent, name="checkpoint.kept"):
    """A restorable checkpoint was found.

    Attributes:
      path: Its path.
    """

    path: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointRestoring(TrainingEvent, name="checkpoint.restoring"):
    """A checkpoint is being read.

    Attributes:
      path: Its path.
    """

    path: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSaved(TrainingEvent, name="checkpoint.saved"):
    """A checkpoint was committed, `duration_s` after it was begun.

    Attributes:
      blocked_s: Seconds for which training was blocked.
      bytes: Its size.
      path: Its path.
    """

    blocked_s: float | None = None
    bytes: int | None = None
    path: str = ""


class CheckpointFailed(SaveFailed, name="checkpoint.failed"):
    """A checkpoint could not be saved; training continues."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointQuarantined(TrainingEvent, name="checkpoint.quarantined"):
    """A checkpoint is unusable, and was moved aside; `reason` says why.

    Attributes:
      path: Its former path.
      moved_to: Its present path.
    """

    path: str = ""
    moved_to: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SnapshotTaken(TrainingEvent, name="snapshot.taken"):
    """A snapshot can be restored, `duration_s` after it was begun.

    Attributes:
      blocked_s: Seconds for which training was blocked.
      bytes: Its size.
      where: ``client`` or ``peer``.
    """

    blocked_s: float | None = None
    bytes: int | None = None
    where: str = ""


class SnapshotFailed(SaveFailed, name="snapshot.failed"):
    """A snapshot could not be taken, or cannot be read; training continues."""
