"""Holds back what JAX's client of a proxy writes when it connects and leaves.

Like the plug-in the file needs the standard library and JAX only: both are copied together.
"""

from __future__ import annotations

import os

__all__ = ["hush", "unhush"]

#: The level of absl's log that lets through only what ends the process.
_FATAL_ONLY = 3


def hush() -> None:
    """Holds back what JAX's client writes when it connects and leaves; its errors are raised."""
    if level := _log_level():  # 0: somebody wants to see everything
        _set_log_level(max(level, _FATAL_ONLY))


def unhush() -> None:
    """Sets the log of JAX's libraries as JAX had it."""
    _set_log_level(_log_level())


def _log_level() -> int:
    """Returns absl's level as JAX has set it; it can be written, not read."""
    import jax  # noqa: PLC0415 - is imported already when JAX calls

    levels = {"DEBUG": 0, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "FATAL": 3, "CRITICAL": 3}
    named = levels.get((jax.config.jax_logging_level or "").upper())
    variable = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1")
    return named if named is not None else int(variable) if variable.isdigit() else 1


def _set_log_level(level: int) -> None:
    from jaxlib import utils  # noqa: PLC0415

    utils.absl_set_min_log_level(level)
