"""Where local sockets are: each in a directory of its own, locked for as long as its owner lives.

A process that is killed removes nothing; but its locks go with it, so that a later one sees what
has no owner any more. (A process's id would say less: it may be another's by then, or of another
container.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

__all__ = ["remove_abandoned", "socket_place"]

_PREFIX = "t-"
_SOCKET = "s"


@contextlib.contextmanager
def socket_place(runtime_dir: Path) -> Iterator[Path]:
    """Yields a path for a socket; it and its directory are gone afterwards."""
    with contextlib.ExitStack() as stack:
        while True:
            place = runtime_dir / f"{_PREFIX}{secrets.token_hex(5)}"
            place.mkdir(mode=0o700)
            # Who looks for what is abandoned may see it before it is locked.
            with contextlib.suppress(FileNotFoundError):
                descriptor = stack.enter_context(_locked(place, fcntl.LOCK_EX))
                if place.exists():
                    break
        stack.callback(_remove, place, descriptor)
        yield place / _SOCKET


def remove_abandoned(runtime_dir: Path) -> None:
    """Removes sockets of processes that did not come to it."""
    for place in runtime_dir.glob(f"{_PREFIX}*"):
        # (Locked: it has an owner. Not there: that has just removed it.)
        with (
            contextlib.suppress(OSError),
            _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor,
        ):
            _remove(place, descriptor)


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[int]:
    # Through no link: it would lead to files that are not ours to remove.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, operation)
        yield descriptor
    finally:
        os.close(descriptor)


def _remove(place: Path, descriptor: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_SOCKET, dir_fd=descriptor)
    with contextlib.suppress(FileNotFoundError):
        place.rmdir()
