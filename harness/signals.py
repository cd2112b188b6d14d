"""Signals to processes, sent or waited for so that they have their effect."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

from harness.processes import DEADLINE_S

__all__ = ["interrupt", "suspend"]


def suspend(pid: int) -> None:
    """Stops a process with SIGSTOP, and waits until none of its threads runs any more."""

    def states() -> set[str]:
        found = set()
        for task in Path(f"/proc/{pid}/task").glob("*/stat"):
            with contextlib.suppress(OSError):  # the thread has ended
                found.add(task.read_text().rpartition(") ")[2][0])
        return found

    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + DEADLINE_S
    while states() != {"T"}:
        assert time.monotonic() < deadline, f"process {pid} does not stop: {states()}"
        time.sleep(0.01)


def interrupt(process: subprocess.Popen[Any]) -> None:
    """Sends SIGINT, as Ctrl-C does, to a process that is about to wait for something.

    Python misses a signal that arrives just before the system call in which it waits.
    """
    deadline = time.monotonic() + DEADLINE_S
    still = (psutil.STATUS_SLEEPING, psutil.STATUS_ZOMBIE)
    while (now := psutil.Process(process.pid).status()) not in still:
        assert time.monotonic() < deadline, f"process {process.pid} is {now}"
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
