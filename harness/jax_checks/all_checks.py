"""All that is compared between the CPU and a proxy; the checks of other files come with it."""

from __future__ import annotations

from harness.jax_checks import (  # noqa: F401 - each has functions that are compared, or checks
    colocated,
    element_types,
    errors,
    faults,
    linalg,
    memory,
    places,
    programs,
    refusals,
    small_types,
    values,
)
from harness.jax_checks.compared import COMPARED

__all__ = ["COMPARED"]
