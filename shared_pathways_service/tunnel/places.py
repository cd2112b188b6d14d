"""Creates directories for local sockets, each locked while its owner lives.

A killed process removes nothing, but its locks are released, so that a later process finds the
abandoned sockets. (A process id would be less reliable: it may be reused, or belong to another
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
    """Yields a path for a socket, and removes it with its directory afterwards."""
    with contextlib.ExitStack() as stack:
        while True:
            place = runtime_dir / f"{_PREFIX}{secrets.token_hex(5)}"
            place.mkdir(mode=0o700)
            # Another process may find the directory before it is locked.
            with contextlib.suppress(FileNotFoundError):
                descriptor = stack.enter_context(_locked(place, fcntl.LOCK_EX))
                if place.exists():
                    break
        stack.callback(_remove, place, descriptor)
        yield place / _SOCKET


def remove_abandoned(runtime_dir: Path) -> None:
    """Removes sockets of processes that ended without removing them."""
    for place in runtime_dir.glob(f"{_PREFIX}*"):
        # (Locked: the owner lives. Missing: the owner has just removed it.)
        with (
            contextlib.suppress(OSError),
            _locked(place, fcntl.LOCK_EX | fcntl.LOCK_NB) as descriptor,
        ):
            _remove(place, descriptor)


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[int]:
    # Does not follow links, which could lead to files of others.
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
