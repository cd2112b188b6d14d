"""All that is compared between the CPU and a proxy; the checks of other files come with it."""

from __future__ import annotations

from tests.servers.proxy.jax import (  # noqa: F401 - each has functions that are compared, or checks
    jax_checks_errors,
    jax_checks_linalg,
    jax_checks_memory,
    jax_checks_places,
    jax_checks_programs,
    jax_checks_refusals,
    jax_checks_values,
)
from tests.servers.proxy.jax.jax_compared import COMPARED

__all__ = ["COMPARED"]
