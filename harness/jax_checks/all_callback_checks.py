"""All checks of callbacks: their names, and the functions of those that are not compared."""

from __future__ import annotations

from harness.jax_checks import (  # noqa: F401 - each adds functions that are compared
    callback_devices,
    partitioning,
)
from harness.jax_checks.callback_order import CALLBACK_CHECKS
from harness.jax_checks.compared import COMPARED
from harness.jax_checks.compile_time import COMPILE_TIME_CHECKS
from harness.jax_checks.nested import NESTED_CHECKS

__all__ = ["CHECKS", "NAMES"]

CHECKS = CALLBACK_CHECKS | COMPILE_TIME_CHECKS | NESTED_CHECKS
NAMES = [
    *CHECKS,
    *(name for name in COMPARED if name.startswith(("callbacks_", "compile_time_"))),
]
