"""Removes directories through which clients pass large buffers to a proxy of their machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

__all__ = ["mark_ended", "remove_tree"]


def mark_ended(directory: Path) -> None:
    """Marks a client's directory as not needed any more, which is about to be removed.

    A client that lives on makes one again that was removed without this mark, the sticky bit (see
    `jax_client.plugin.transfer_files`).
    """
    with contextlib.suppress(OSError):
        directory.chmod(stat.S_IRWXU | stat.S_ISVTX)


def remove_tree(root: Path) -> None:
    """Removes directories of clients, and the one that they are in, as far as possible."""
    for directory, _, _ in os.walk(root):
        mark_ended(Path(directory))
    shutil.rmtree(root, ignore_errors=True)
