"""Unix sockets that only their user can open."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from pathlib import Path

__all__ = ["own_socket", "removed_at_the_end"]


def own_socket(path: Path) -> socket.socket:
    """Binds a socket that nobody else could open at any time; replaces one that nobody serves.

    Raises:
      OSError: The path cannot be bound, is no socket, or is served by another process.
    """
    made = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        if path.is_socket() and not _is_served(path):
            path.unlink()
        made.bind(str(path))
    except OSError:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


@contextlib.contextmanager
def removed_at_the_end(path: Path) -> Iterator[None]:
    """Removes the socket at a path after the block, unless it is another one by then."""
    made = path.stat().st_ino
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.stat().st_ino == made:
                path.unlink()


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.setblocking(False)
        return client.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
