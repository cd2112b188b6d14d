"""All modules of checks: importing this fills `CHECKS`."""

from __future__ import annotations

from tests.elastic import (
    checks_data,
    checks_errors,
    checks_hangs,
    checks_leaks,
    checks_loop,
    checks_restoring,
    checks_starts,
    checks_waiting,
)

MODULES = (
    checks_data,
    checks_errors,
    checks_hangs,
    checks_leaks,
    checks_loop,
    checks_restoring,
    checks_starts,
    checks_waiting,
)
