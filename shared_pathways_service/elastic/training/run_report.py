"""Reports one run of training as events."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from shared_pathways_service.elastic.policy.options import Options, SliceRange
from shared_pathways_service.elastic.training.budget import Budget
from shared_pathways_service.elastic.training.restoring import States
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptStarted,
    RunDone,
    RunStarted,
    TrainingRetried,
)

__all__ = ["RunReport"]


class RunReport:
    """Emits the events of a run: its start, its attempts and its end."""

    def __init__(
        self,
        emit: Callable[[Event], None],
        options: Options,
        states: States,
        budget: Budget,
        down_events: Callable[[], int],
    ) -> None:
        self._emit = emit
        self._options = options
        self._states = states
        self._budget = budget
        self._down_events = down_events
        self._cause = "start"

    def started(self, slices: int, allowed: SliceRange) -> None:
        """The run begins, with so many slices."""
        self._emit(
            RunStarted(
                step=self._states.newest_step() or 0,
                run_name=self._options.run_name,
                enabled=self._options.elastic_enabled,
                slices=slices,
                policy=allowed.policy,
                min_slices=allowed.least,
                max_slices=allowed.most,
                max_attempts=self._options.elastic_max_retries,
                pid=os.getpid(),
            )
        )

    def attempt_started(self, slices: Sequence[int], waited_s: float) -> None:
        """An attempt begins on slices that were waited for."""
        self._emit(
            AttemptStarted(
                step=self._states.newest_step() or 0,
                duration_s=waited_s,
                attempt=self._budget.failures + 1,
                max_attempts=self._options.elastic_max_retries,
                cause=self._cause,
                slices=tuple(slices),
                slice_count=len(slices),
                down_events=self._down_events(),
            )
        )

    def retried(self, cause: str) -> None:
        """Another attempt will follow."""
        self._cause = cause
        self._emit(
            TrainingRetried(
                step=self._states.reached,
                attempt=self._budget.failures + 1,
                max_attempts=self._options.elastic_max_retries,
                cause=cause,
            )
        )

    def done(self, seconds: float, outcome: str, reason: str) -> None:
        """The run has ended."""
        step = self._states.reached
        self._emit(RunDone(step=step, duration_s=seconds, reason=reason or None, outcome=outcome))
