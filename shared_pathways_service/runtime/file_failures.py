"""Explains why a directory of the settings cannot be used: a full disk, or one without locks."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from shared_pathways_service.constants import NO_LOCKS
from shared_pathways_service.errors import PreflightError

__all__ = ["explained"]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT}


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
        number = error.errno if isinstance(error, OSError) else errno.ENOSYS
        reason = os.strerror(number or errno.EIO)
        if number in NO_LOCKS:
            what = "lock files"
            hint = (
                f"set {field} to a directory on a file system that has locks, such as a local one"
            )
        else:
            what = "write"
            before = "free space there, or " if number in _FULL else ""
            hint = f"{before}set {field} to another directory"
        raise PreflightError(f"cannot {what} in {directory}: {reason}", hint=hint) from error
