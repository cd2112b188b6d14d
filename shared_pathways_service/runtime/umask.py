"""Reads this process's umask."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["current_umask"]


def current_umask() -> int:
    """Returns the umask; on Linux without changing it, as other threads may be creating files."""
    with contextlib.suppress(OSError):
        for line in (
            Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        ):
            name, _, value = line.partition(":")
            if name == "Umask":
                return int(value, 8)
    # The strictest one meanwhile.
    before = os.umask(0o077)
    os.umask(before)
    return before
