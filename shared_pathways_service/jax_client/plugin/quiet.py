"""Holds back what JAX's client of a proxy writes beside the errors that it raises.

Like the plug-in the file needs the standard library and JAX only: both are copied together.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["hush", "hush_refusals", "unhush"]

#: The level of absl's log that JAX sets where nothing is asked for.
_DEFAULT = 1
#: That which lets errors through.
_ERRORS_ONLY = 2

#: That which lets through only what ends the process.
_FATAL_ONLY = 3


def hush() -> None:
    """Holds back what JAX's client writes when it connects and leaves; its errors are raised."""
    if level := _log_level():  # 0: somebody wants to see everything
        _set_log_level(max(level, _FATAL_ONLY))


def hush_refusals() -> None:
    """Holds back the client's warnings, as long as there is a client, unless JAX is asked for them.

    It warns of every request that a proxy refuses, at length, and JAX raises the same as an error.
    JAX_LOGGING_LEVEL=WARNING asks for the warnings; TF_CPP_MIN_LOG_LEVEL=1 is what JAX itself sets.
    """
    level = _log_level()
    is_default = level == _DEFAULT and _named_level() is None
    _set_log_level(_ERRORS_ONLY if is_default else level)


def unhush() -> None:
    """Sets the log of JAX's libraries as JAX had it."""
    _set_log_level(_log_level())


def _log_level() -> int:
    """Returns absl's level as JAX has set it; it can be written, not read."""
    if (named := _named_level()) is not None:
        return named
    variable = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "")
    return int(variable) if variable.isdigit() else _DEFAULT


def _named_level() -> int | None:
    levels = {"DEBUG": 0, "INFO": 0, "WARN": 1, "WARNING": 1, "ERROR": 2, "FATAL": 3, "CRITICAL": 3}
    return levels.get((_config().jax_logging_level or "").upper())


def _config() -> Any:
    import jax  # noqa: PLC0415 - is imported already when JAX calls

    return jax.config


def _set_log_level(level: int) -> None:
    from jaxlib import utils  # noqa: PLC0415

    utils.absl_set_min_log_level(level)
