"""Finds shared libraries in the directory from which an operator allows proxies to load them."""

from __future__ import annotations

import os
from pathlib import Path

from shared_pathways_service.api.ffi_targets import FfiTarget
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["find_library"]

_WRITABLE_BY_OTHERS = 0o022


def find_library(directory: str, target: FfiTarget, *, field: str) -> Path:
    """Returns the file of a target's library in the operator's directory; empty: none is allowed.

    Raises:
      InvalidRequestError: No directory is allowed, the file is not in it, or others than the user
        and root can change it.
    """
    if not directory:
        raise InvalidRequestError(
            field,
            str(target),
            "a service whose operator allows users' libraries (`sps serve "
            "--allow-ffi-libraries DIR`)",
        )
    try:
        root = Path(directory).resolve(strict=True)
        path = (root / target.library).resolve(strict=True)
    except OSError as error:
        raise InvalidRequestError(
            field, str(target), f"a library in {directory}: {error.strerror}"
        ) from error
    if path.parent != root or not path.is_file():
        raise InvalidRequestError(field, str(target), f"a file in {root}, not a link out of it")
    for place in (root, path):
        status = place.stat()
        if status.st_uid not in (0, os.getuid()) or status.st_mode & _WRITABLE_BY_OTHERS:
            raise InvalidRequestError(
                field, str(target), f"a library that only its user can change: {place} is not"
            )
    return path
