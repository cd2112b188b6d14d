"""A small file system, which tests fill: a real full disk. Only root can mount one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["IS_POSSIBLE", "fill", "small_disk"]

IS_POSSIBLE = sys.platform == "linux" and os.geteuid() == 0


@contextlib.contextmanager
def small_disk(size: int, files: int = 0) -> Iterator[Path]:
    """Mounts a file system in memory for the length of the block.

    Args:
      size: Its size in bytes.
      files: The number of files and directories that it has room for, itself counted; 0: many.
    """
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        options = f"size={size},nr_inodes={files},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "sps-test", directory], check=True)
        try:
            yield Path(directory)
        finally:
            # (A process of the test may end a moment later.)
            subprocess.run(["umount", "--lazy", directory], check=True)


def fill(directory: Path) -> Path:
    """Takes all space that is left; returns the file, whose removal frees it."""
    taken = directory / "fill"
    with contextlib.suppress(OSError), taken.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return taken
