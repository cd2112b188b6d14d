"""Errors and signals of elastic training; the first two have the names of pathwaysutils."""

from __future__ import annotations

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["ElasticRuntimeError", "ScaleUpSignalError", "first_line"]


class ElasticRuntimeError(SharedPathwaysError, RuntimeError):
    """Training cannot continue: a budget is exhausted, or the slices did not come back in time."""


class ScaleUpSignalError(Exception):
    """Signals that training should restart on more slices; raised within the training function."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
