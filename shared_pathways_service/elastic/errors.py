"""Errors and signals of elastic training; the first two bear the names that pathwaysutils has."""

from __future__ import annotations

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["ElasticRuntimeError", "ScaleUpSignalError"]


class ElasticRuntimeError(SharedPathwaysError, RuntimeError):
    """Training cannot go on: a budget is spent, or the slices did not come back in time."""


class ScaleUpSignalError(Exception):
    """Says that training should begin anew on more slices; raised within the function trained."""
