"""Parsers of settings: each takes the value's source and the value, and returns the parsed value.

Each raises `InvalidRequestError`, whose ``field`` is the source.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.patience.factor import LEAST, MOST, VARIABLE, given
from shared_pathways_service.runtime.user_directories import is_utf8

__all__ = [
    "LogFormat",
    "check_patience",
    "read_address",
    "read_bytes",
    "read_deadline",
    "read_image",
    "read_log_format",
    "read_log_level",
    "read_path",
    "read_path_or_none",
    "read_port",
]

_SHORTEST_DEADLINE_S = 5.0
_LAST_PORT = 65535
_LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

LogFormat = Literal["text", "json"]


def check_patience(environ: Mapping[str, str]) -> None:
    """Checks the factor of time-outs, which `patience` reads from the environment itself."""
    if (text := environ.get(VARIABLE)) and given(text) is None:
        raise InvalidRequestError(VARIABLE, text, f"a number from {LEAST:g} to {MOST:g}")


def read_path(field: str, value: object) -> Path:
    """Returns an absolute path."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise InvalidRequestError(field, value, "a path")
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise InvalidRequestError(field, value, f"a path ({error})") from error
    if not path.is_absolute():
        raise InvalidRequestError(field, value, "an absolute path")
    if not is_utf8(path):
        raise InvalidRequestError(field, str(value), "a path in UTF-8")
    return path


def read_path_or_none(field: str, value: object) -> Path | None:
    """Returns an absolute path; None for ``none``."""
    return None if value == "none" else read_path(field, value)


def read_log_level(field: str, value: object) -> str:
    """Returns a level of `logging`."""
    if not isinstance(value, str) or value.upper() not in _LOG_LEVELS:
        raise InvalidRequestError(field, value, f"one of {', '.join(_LOG_LEVELS)}")
    return value.upper()


def read_log_format(field: str, value: object) -> LogFormat:
    """Returns a format of log lines."""
    if value in ("text", "json"):
        return value
    raise InvalidRequestError(field, value, "text or json")


def read_address(field: str, value: object) -> str:
    """Returns an address."""
    if not isinstance(value, str) or not value or any(c.isspace() for c in value):
        raise InvalidRequestError(field, value, "an address of this machine")
    return value


def read_image(field: str, value: object) -> str:
    """Returns a container image's name."""
    if not isinstance(value, str) or not value or any(c.isspace() for c in value):
        raise InvalidRequestError(field, value, "a container image, e.g. REGISTRY/NAME:TAG")
    return value


def read_deadline(field: str, value: object) -> float:
    """Returns seconds."""
    number = -1.0
    with contextlib.suppress(TypeError, ValueError):
        number = float(value)  # type: ignore[arg-type]
    if not _SHORTEST_DEADLINE_S <= number < math.inf:
        raise InvalidRequestError(field, value, f"seconds, {_SHORTEST_DEADLINE_S:g} or more")
    return number


def read_bytes(field: str, value: object) -> int:
    """Returns a number of bytes."""
    # (A whole number, or its text: neither 1.5 nor True.)
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        number = int(value)
        if number >= 0:
            return number
    raise InvalidRequestError(field, value, "a whole number of bytes, 0 or more")


def read_port(field: str, value: object) -> int:
    """Returns a port."""
    # (As for bytes.)
    if type(value) is int or (isinstance(value, str) and value.isdecimal()):
        number = int(value)
        if 0 <= number <= _LAST_PORT:
            return number
    raise InvalidRequestError(field, value, f"a port, from 0 to {_LAST_PORT}")
