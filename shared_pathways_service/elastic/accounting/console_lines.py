"""The lines that users of elastic training and their scripts look for, made of the events.

Their wording is that of MaxText and pathwaysutils, from whose logs people know them.
"""

from __future__ import annotations

import math
from typing import Final

from shared_pathways_service.events import Event, Scalar

__all__ = ["lines_of"]

_STEP_FIELDS: Final = (
    ("slice_count", "elastic_manager.good_slice_count"),
    ("down_events", "elastic_manager.elastic_down_event_count"),
)


def lines_of(event: Event) -> list[str]:
    """Returns the lines that tell an event, without newlines; most events have none."""
    told = event.data.get
    lines: list[str] = []
    match event.kind:
        case "elastic.run.started" if told("enabled"):
            lines = ["Elastic utils: Elastic training enabled.", "Elastic Retry Enabled"]
        case "elastic.error" if told("verdict") == "slice" and told("decision") == "retry":
            lines = ["Slice down event detected. Retrying."]
        case "elastic.attempt.started" if _follows_a_failure(event):
            lines = [f"Elastic attempt {told('attempt')} out of {told('max_attempts')}"]
        case "checkpoint.kept":
            lines = [f"Found commit_success file. Keeping {_path(told('path'))}/."]
        case "checkpoint.restoring":
            lines = [f"Restoring checkpoint from {_path(told('path'))}."]
        case "elastic.step":
            lines = _step_lines(event)
    return lines


def _follows_a_failure(event: Event) -> bool:
    return _number(event.data.get("attempt")) >= 2 and event.data.get("cause") != "scale_up"


def _step_lines(event: Event) -> list[str]:
    tflops, loss = (_number(event.data.get(name)) for name in ("tflops_per_device", "loss"))
    seconds = _number(event.duration_s)
    measured = f"seconds: {seconds:.3f}, TFLOP/s/device: {tflops:.3f}, loss: {loss:.3f}"
    lines = [f"completed step: {event.step}, {measured}"]
    counts = [(known, event.data.get(name)) for name, known in _STEP_FIELDS]
    if all(value is not None for _, value in counts):
        told = " ".join(f"{known}={value}" for known, value in counts)
        lines.append(f"step={event.step} {told}")
    return lines


def _number(value: Scalar) -> float:
    """Returns a number; what is not known is not a number, which `float` reads too."""
    try:
        return math.nan if value is None else float(value)
    except ValueError:
        return math.nan


def _path(value: Scalar) -> str:
    # Who reads lines would take a newline in a name for the end of ours.
    return str(value).rstrip("/").replace("\n", "\\n").replace("\r", "\\r")
