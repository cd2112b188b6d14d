"""Explains why a directory of the settings cannot be used: a full disk, or one without locks."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from shared_pathways_service.constants import NO_LOCKS
from shared_pathways_service.errors import PreflightError

__all__ = ["DISK_ERRORS", "explained", "explained_by_path", "explanation", "named"]

#: Errors of a file system, whatever the path.
DISK_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})

#: What else to do than to choose another directory.
_REMEDIES: Final = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there",
    errno.EFBIG: "raise the limit of file sizes (`ulimit -f`)",
}


@contextlib.contextmanager
def explained(directory: Path, field: str) -> Iterator[None]:
    """Translates errors of files in a directory; timeouts of locks propagate.

    Args:
      directory: The directory.
      field: The variable that sets it.

    Raises:
      PreflightError: A file cannot be written or locked.
    """
    try:
        yield
    except TimeoutError:
        raise
    # (`filelock` raises NotImplementedError for ENOSYS.)
    except (OSError, NotImplementedError) as error:
        raise explanation(error, directory, field) from error


@contextlib.contextmanager
def explained_by_path(directories: Mapping[str, Path]) -> Iterator[None]:
    """Translates errors of files below the directories of settings; others propagate.

    Args:
      directories: By the variable that sets each.

    Raises:
      PreflightError: A file cannot be written or locked.
    """
    try:
        yield
    except TimeoutError:
        raise
    except OSError as error:
        if isinstance(error.filename, (str, os.PathLike)):
            path = Path(error.filename)
            for field, directory in directories.items():
                if path.is_relative_to(directory):
                    raise explanation(error, directory, field, path=path) from error
        raise


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """Adds a file's name to errors of its writes: the system knows a descriptor only."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def explanation(
    error: OSError | NotImplementedError, directory: Path, field: str, path: Path | None = None
) -> PreflightError:
    """Returns the error that says which directory cannot be used, why, and what to do.

    Args:
      error: The system's error, or that of `filelock`.
      directory: The directory.
      field: The variable or argument that sets it.
      path: The file, if it is known.
    """
    number = error.errno if isinstance(error, OSError) else errno.ENOSYS
    reason = os.strerror(number or errno.EIO)
    if number in NO_LOCKS:
        what = "lock files"
        hint = f"set {field} to a directory on a file system that has locks, such as a local one"
    else:
        what = "write"
        hint = f"set {field} to another directory"
        if remedy := _REMEDIES.get(number or 0):
            hint = f"{remedy}, or {hint}"
    which = "" if path in (None, directory) else f": {path}"
    return PreflightError(f"cannot {what} in {directory}{which}: {reason}", hint=hint)
