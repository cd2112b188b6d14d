"""Identifies processes (an id alone may be reused), and signals exactly one process."""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Identity", "identity_of", "identity_of_child", "signal_process"]

#: Errors of a look at a process that say nothing about it.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """A process, distinguished from a later one with the same id.

    Attributes:
      pid: The process id.
      start: When it started, independent of changes of the wall clock where possible (Linux: the
        boot's id and clock ticks since the boot); only for comparison. Empty: it has ended.
    """

    pid: int
    start: str

    def is_alive(self) -> bool:
        """Whether it still runs; a process that has ended but is not reaped does not.

        Without a free file descriptor, any process with its id counts as this one: callers delete
        what ended processes leave. One that this user may not look at does not: it is another
        user's, with an id that was reused.
        """
        try:
            return bool(self.start) and _runs(self)
        except OSError:
            return _exists(self.pid)

    def to_json(self) -> dict[str, Any]:
        """Returns the identity as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Identity:
        """Makes the identity from plain data of `to_json`."""
        return cls(pid=int(data["pid"]), start=str(data["start"]))


def identity_of(pid: int | None = None) -> Identity:
    """Returns the identity of a process, by default of this one.

    Raises:
      ProcessLookupError: It has ended, or is one of another user that this one may not look at.
      OSError: The look failed for lack of a file descriptor or memory.
    """
    pid = os.getpid() if pid is None else pid
    start = _start_of(pid)
    if start is None:
        raise ProcessLookupError(f"no process {pid}")
    return Identity(pid=pid, start=start)


def identity_of_child(pid: int) -> Identity:
    """Returns the identity of a child process, also if it has ended and is not reaped.

    Raises:
      OSError: The look failed for lack of a file descriptor or memory.
    """
    # It then has no start time, and needs none.
    try:
        return identity_of(pid)
    except ProcessLookupError:
        return Identity(pid=pid, start="")


def signal_process(identity: Identity, sig: signal.Signals) -> bool:
    """Sends a signal to this process, never to a later one with its id; False: it has ended.

    Raises:
      OSError: The look at it failed for lack of a file descriptor or memory.
    """
    if not identity.start:
        return False
    try:
        if sys.platform != "linux":
            if alive := _runs(identity):
                os.kill(identity.pid, sig)
            return alive
        # Opened first: the descriptor's process cannot change between check and signal.
        pidfd = os.pidfd_open(identity.pid)
        try:
            if alive := _runs(identity):
                signal.pidfd_send_signal(pidfd, sig)
            return alive
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return False


def _runs(identity: Identity) -> bool:
    """Whether a process still runs; raises OSError if the look failed for lack of resources."""
    return _start_of(identity.pid) == identity.start


def _start_of(pid: int) -> str | None:
    """Returns when a process started; None: it has ended, or may not be looked at."""
    return _linux_start(pid) if sys.platform == "linux" else _start_by_psutil(pid)


def _exists(pid: int) -> bool:
    """Whether a process has this id, even if it is not reaped; takes no file descriptor."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _linux_start(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        # (/proc mounted with hidepid=1 refuses looks at processes of other users.)
        return None
    # The name, in parentheses, may contain anything; state is the 3rd field and the start the 22nd.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else f"{_boot_id()}/{fields[19]}"


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _start_by_psutil(pid: int) -> str | None:
    import psutil  # noqa: PLC0415 - slow to import, and of no use on Linux

    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else f"{process.create_time():.2f}"
    except psutil.Error:
        return None
