"""Errors and signals of elastic training; the first two have the names of pathwaysutils."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.runtime.file_failures import explanation

__all__ = [
    "ElasticRuntimeError",
    "ScaleUpSignalError",
    "failure_of_files",
    "first_line",
    "is_full",
]

#: How TensorStore's errors, which have no fields, name that of the system.
_SYSTEMS_NUMBER: Final = re.compile(r"\[os_error_code='(\d+)'\]")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class ElasticRuntimeError(SharedPathwaysError, RuntimeError):
    """Training cannot continue: a budget is exhausted, or the slices did not come back in time."""


class ScaleUpSignalError(Exception):
    """Signals that training should restart on more slices; raised within the training function."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def failure_of_files(error: BaseException, directory: Path, setting: str) -> str:
    """Returns one line about an error of files in a directory; empty: it is another error.

    Args:
      error: The error.
      directory: The directory.
      setting: The argument that sets it.
    """
    number = _number_of(error)
    if number is None:
        return ""
    found = explanation(OSError(number, os.strerror(number)), directory, setting)
    return f"{found.message}; {found.hint}"


def is_full(error: BaseException) -> bool:
    """Whether an error says that a file system has no room left."""
    return _number_of(error) in _FULL


def _number_of(error: BaseException) -> int | None:
    """Returns the system's error number, also of the cause of an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        if found := _SYSTEMS_NUMBER.search(str(cause)):
            return int(found[1])
        cause = cause.__cause__
    return None
