"""Decides when a checkpoint is due."""

from __future__ import annotations

from shared_pathways_service.elastic.policy.options import Options

__all__ = ["CheckpointsDue"]


class CheckpointsDue:
    """Counts steps, seconds and epochs since the last checkpoint. The caller passes the time."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._epoch = 0
        self._time = 0.0

    def begin(self, epoch: int, now: float) -> None:
        """Records that training begins or continues; every attempt has the same due steps."""
        self._epoch = epoch
        self._time = now

    def is_due(self, step: int, epoch: int, now: float) -> bool:
        """Returns whether to save the state after `step` steps; if so, restarts the counts."""
        options = self._options
        seconds, epochs = options.checkpoint_period_seconds, options.checkpoint_period_epochs
        due = (
            step % options.checkpoint_period == 0
            or (seconds > 0 and now - self._time >= seconds)
            or (epochs > 0 and epoch - self._epoch >= epochs)
        )
        if due:
            self._epoch = epoch
            self._time = now
        return due
