"""Finds the failed slices that an exception, or one of its causes, names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import jax

from shared_pathways_service.elastic.errors import first_line
from shared_pathways_service.elastic.policy.triage import Fault, Verdict, classify
from shared_pathways_service.errors import SliceLost

__all__ = ["chain", "fault_of"]

#: The number of causes that are inspected behind an error.
_DEEPEST: Final = 16


def fault_of(error: BaseException) -> Fault:
    """Returns the fault of an error, or of its cause."""
    for found in chain(error):
        if isinstance(found, SliceLost):
            return Fault(verdict=Verdict.SLICE, text=found.message, slices=tuple(found.slices))
        if isinstance(found, jax.errors.JaxRuntimeError):
            return classify(str(found))
    return Fault(verdict=Verdict.USER, text=first_line(error))


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and its causes, in the order of a traceback."""
    found: BaseException | None = error
    for _ in range(_DEEPEST):
        if found is None:
            return
        yield found
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
