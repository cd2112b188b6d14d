"""Suppresses log output of JAX's client of a proxy in addition to the errors that it raises."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["suppress", "suppress_refusals", "restore"]

#: The level of absl's log that JAX sets by default.
_DEFAULT = 1
#: The level that shows errors.
_ERRORS_ONLY = 2

#: The level that shows only fatal errors.
_FATAL_ONLY = 3


def suppress() -> None:
    """Suppresses output of JAX's client when it connects and disconnects; its errors are raised."""
    if level := _log_level():  # 0: the user wants to see everything
        _set_log_level(max(level, _FATAL_ONLY))


def suppress_refusals() -> None:
    """Suppresses the client's warnings during a connection, unless JAX is configured to show them.

    It prints a long warning for every request that a proxy refuses, and JAX raises the same as an
    error. JAX_LOGGING_LEVEL=WARNING shows the warnings; TF_CPP_MIN_LOG_LEVEL=1 is JAX's own
    default.
    """
    level = _log_level()
    is_default = level == _DEFAULT and _named_level() is None
    _set_log_level(_ERRORS_ONLY if is_default else level)


def restore() -> None:
    """Restores JAX's log level."""
    _set_log_level(_log_level())


def _log_level() -> int:
    """Returns the level that JAX has set for absl, whose level can be written but not read."""
    if (named := _named_level()) is not None:
        return named
    variable = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    return int(variable) if variable.isdigit() else _DEFAULT


def _named_level() -> int | None:
    levels = {"DEBUG": 0, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "FATAL": 3, "CRITICAL": 3}
    config: Any = importlib.import_module("jax").config
    return levels.get((config.jax_logging_level or "").upper())


def _set_log_level(level: int) -> None:
    from jaxlib import utils  # noqa: PLC0415

    utils.absl_set_min_log_level(level)
