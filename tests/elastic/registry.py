"""Checks of elastic training that need JAX on twelve CPU devices, by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["CHECKS", "check"]

Check = Callable[[Path], None]
CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    CHECKS[function.__name__] = function
    return function
