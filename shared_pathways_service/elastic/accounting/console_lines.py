"""Formats events as the log lines that users of elastic training and their scripts expect.

The wording is that of the logs of MaxText and pathwaysutils.
"""

from __future__ import annotations

import math

from shared_pathways_service.events import Event
from shared_pathways_service.events.training import (
    AttemptFailed,
    AttemptStarted,
    CheckpointKept,
    CheckpointRestoring,
    RunStarted,
    TrainingStep,
)

__all__ = ["lines_of"]


def lines_of(event: Event) -> list[str]:
    """Returns the lines for an event, without newlines; most events have none."""
    lines: list[str] = []
    match event:
        case RunStarted(enabled=True):
            lines = ["Elastic utils: Elastic training enabled.", "Elastic Retry Enabled"]
        case AttemptFailed(verdict="slice") if event.retries:
            lines = ["Slice down event detected. Retrying."]
        case AttemptStarted() if (event.attempt or 0) >= 2 and event.cause != "scale_up":
            lines = [f"Elastic attempt {event.attempt} out of {event.max_attempts}"]
        case CheckpointKept():
            lines = [f"Found commit_success file. Keeping {_path(event.path)}/."]
        case CheckpointRestoring():
            lines = [f"Restoring checkpoint from {_path(event.path)}."]
        case TrainingStep():
            lines = _step_lines(event)
    return lines


def _step_lines(event: TrainingStep) -> list[str]:
    tflops, loss = _number(event.tflops_per_device), _number(event.loss)
    seconds = _number(event.duration_s)
    measured = f"seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, loss: {loss:.3f}"
    lines = [f"completed step: {event.step}, {measured}"]
    slices, down_events = event.slice_count, event.down_events
    if slices is not None and down_events is not None:
        lines.append(
            f"step={event.step} elastic_manager.good_slice_count={slices} "
            f"elastic_manager.elastic_down_event_count={down_events}"
        )
    return lines


def _number(value: float | None) -> float:
    """Returns a number; NaN, which programs can parse, if it is unknown."""
    return math.nan if value is None else value


def _path(path: str) -> str:
    # A newline in a name would look like the end of our line.
    return path.rstrip("/").replace("\n", "\\n").replace("\r", "\\r")
