"""Computes from a run's events how its time was spent."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shared_pathways_service.elastic.accounting.account import Account, Cause
from shared_pathways_service.elastic.accounting.history import (
    LossPoint,
    Mark,
    SliceCount,
    lives_of,
    loss_curve,
    sights_of,
    slice_counts,
)
from shared_pathways_service.elastic.accounting.incidents import Incident, Repair, repairs_of
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptStarted,
    CheckpointQuarantined,
    CheckpointSaved,
    RunDone,
    SaveFailed,
    SliceDown,
    SnapshotTaken,
    TrainingRetried,
)

__all__ = ["Report", "report_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The summary of a run.

    Attributes:
      began: The time of the first event, RFC 3339.
      wall_s: Seconds from the first event to the last.
      good_s: Of these, seconds of steps whose results survived.
      badput_s: The other seconds, by cause; together with `good_s` they are `wall_s`.
      outcome: How the last process's run ended; None: it was killed, or continues.
      steps: Steps whose results survived; `steps_lost` were repeated.
      last_step: The last completed step; None: there was none.
      failed_saves: Checkpoints and snapshots that failed.
      mttr: Time to repair, by cause of the incident.
      slice_counts: The number of training slices, at each change.
      losses: The loss over the steps whose results survived; empty: it was not reported.
    """

    began: str
    wall_s: float
    good_s: float
    badput_s: Mapping[Cause, float]
    outcome: str | None
    processes: int
    attempts: int
    steps: int
    steps_lost: int
    last_step: int | None
    slice_losses: Mapping[str, int]
    scale_ups: int
    checkpoints: int
    snapshots: int
    failed_saves: int
    quarantined: int
    incidents: Sequence[Incident]
    mttr: Mapping[str, Repair]
    slice_counts: Sequence[SliceCount]
    marks: Sequence[Mark]
    losses: Sequence[LossPoint] = ()

    @property
    def goodput(self) -> float:
        """The share of the wall time for steps whose results survived, from 0 to 1."""
        return self.good_s / self.wall_s if self.wall_s else 0.0

    def as_fields(self) -> dict[str, Any]:
        """Returns its fields and `goodput`, for JSON."""
        return {**dataclasses.asdict(self), "goodput": self.goodput}


def report_of(events: Iterable[Event]) -> Report | None:
    """Summarizes a run; returns None if there are no events of elastic training."""
    lives = lives_of(events)
    if not lives:
        return None
    account = Account()
    for life, following in itertools.zip_longest(lives, lives[1:]):
        account.add(life)
        if following is not None and not life.finished:
            account.killed()
    good_s, badput_s = account.close()
    run_events = [moment.event for life in lives for moment in life.moments]
    counts = collections.Counter(map(type, run_events))
    outcomes = [m.event.outcome for m in lives[-1].moments if isinstance(m.event, RunDone)]
    losses = collections.Counter(str(e.slice) for e in run_events if isinstance(e, SliceDown))
    return Report(
        began=run_events[0].time,
        wall_s=lives[-1].end,
        good_s=good_s,
        badput_s=badput_s,
        outcome=outcomes[-1] if outcomes else None,
        processes=len(lives),
        attempts=counts[AttemptStarted],
        steps=len(account.kept),
        steps_lost=len(account.lost),
        last_step=account.kept[-1].step if account.kept else None,
        slice_losses=dict(sorted(losses.items())),
        scale_ups=sum(isinstance(e, TrainingRetried) and e.scales_up for e in run_events),
        checkpoints=counts[CheckpointSaved],
        snapshots=counts[SnapshotTaken],
        failed_saves=sum(isinstance(e, SaveFailed) for e in run_events),
        quarantined=counts[CheckpointQuarantined],
        incidents=account.log.incidents,
        mttr=repairs_of(account.log.incidents),
        slice_counts=slice_counts(lives),
        marks=sights_of(lives),
        losses=loss_curve(lives),
    )
