"""Processes of a testbed, and which of them are left after its end."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil

from harness.deadlines import left_after
from harness.processes import is_alive

__all__ = ["processes_of", "still_there"]


def processes_of(directory: Path) -> list[psutil.Process]:
    """The processes whose command line names a testbed's directory."""
    # (A part of a path would also be in command lines of others.)
    assert directory.is_absolute(), directory
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(directory) in word for word in process.cmdline()):
                found.append(process)
    return found


def still_there(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that do not end in time; a zombie has ended, although its parent may never reap it."""
    return left_after(lambda: [p for p in processes if is_alive(p)], 60.0)
