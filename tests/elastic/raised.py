"""Training that must raise."""

from __future__ import annotations

from typing import Any

from harness.elastic.example_training import train


def raised_by(kind: type[Exception], *args: Any, **others: Any) -> Any:
    """Runs training, which must raise; returns the error."""
    try:
        train(*args, **others)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")
