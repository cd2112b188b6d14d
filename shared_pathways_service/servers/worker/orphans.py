"""Processes whose parents have ended: this process adopts and kills those of its descendants.

What a tenant's function starts may leave its process group, and outlive its executor; it stays a
descendant of the worker (Linux: PR_SET_CHILD_SUBREAPER).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

import psutil

from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "adopt_orphans",
    "adopts_orphans",
    "kill_orphans",
    "reap_orphans",
    "reaping_interval_s",
]

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.02
_REAP_EVERY_S = 2.0

_adopts = False


def adopt_orphans(field: str) -> None:
    """Becomes the parent of descendants whose parents end.

    Raises:
      InvalidRequestError: The system has nothing for that; `field` asked for it.
    """
    global _adopts  # noqa: PLW0603 - a property of the process
    if sys.platform != "linux":
        raise InvalidRequestError(field, "true", "left out: it needs Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    _adopts = True


def adopts_orphans() -> bool:
    """Returns whether this process is the parent of descendants whose parents have ended."""
    return _adopts


def kill_orphans(within_s: float) -> None:
    """Kills all children, and all that they leave; nothing if this process adopts no orphans.

    Call it when no executor runs.

    Raises:
      subprocess.TimeoutExpired: A child, which the kernel holds up or which starts others faster
        than they are killed, is left.
    """
    if not _adopts:
        return
    deadline = time.monotonic() + within_s
    while children := _children():
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            raise subprocess.TimeoutExpired(f"processes {sorted(children)}", within_s)
        time.sleep(_POLL_S)


def reaping_interval_s() -> float | None:
    """Returns the seconds between calls of `reap_orphans`; None: there are no orphans."""
    return _REAP_EVERY_S if _adopts else None


def reap_orphans(executor: int) -> None:
    """Removes adopted processes that have ended, unless the executor of this id has ended.

    (Then `kill_orphans` is due.)
    """
    if not _adopts:
        return
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, look)) and ended.si_pid != executor:
            os.waitpid(ended.si_pid, 0)


def _children() -> set[int]:
    """Returns the children of this process, also those that are not reaped."""
    return {child.pid for child in psutil.Process().children()}
