"""Identifies processes (an id alone may be reused), and signals exactly one process."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["Identity", "identity_of", "identity_of_child", "signal_process"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """A process, distinguished from a later one with the same id.

    Attributes:
      pid: The process id.
      start: When it started, independent of changes of the wall clock where possible (Linux: the
        boot's id and clock ticks since the boot); only for comparison.
    """

    pid: int
    start: str

    def is_alive(self) -> bool:
        """Whether it still runs; a process that has ended but is not reaped does not."""
        return _start_of(self.pid) == self.start

    def to_json(self) -> dict[str, Any]:
        """Returns the identity as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Identity:
        """Makes the identity from plain data of `to_json`."""
        return cls(pid=int(data["pid"]), start=str(data["start"]))


def identity_of(pid: int | None = None) -> Identity:
    """Returns the identity of a process, by default of this one; raises ProcessLookupError."""
    pid = os.getpid() if pid is None else pid
    start = _start_of(pid)
    if start is None:
        raise ProcessLookupError(f"no process {pid}")
    return Identity(pid=pid, start=start)


def identity_of_child(pid: int) -> Identity:
    """Returns the identity of a child process, also if it has ended and is not reaped."""
    # It then has no start time, and needs none.
    try:
        return identity_of(pid)
    except ProcessLookupError:
        return Identity(pid=pid, start="")


def signal_process(identity: Identity, sig: signal.Signals) -> bool:
    """Sends a signal to this process, never to a later one with its id; False: it has ended."""
    try:
        if sys.platform != "linux":
            if alive := identity.is_alive():
                os.kill(identity.pid, sig)
            return alive
        # Opened first: the descriptor's process cannot change between check and signal.
        pidfd = os.pidfd_open(identity.pid)
        try:
            if alive := identity.is_alive():
                signal.pidfd_send_signal(pidfd, sig)
            return alive
        finally:
            os.close(pidfd)
    except ProcessLookupError:
        return False


def _start_of(pid: int) -> str | None:
    return _linux_start(pid) if sys.platform == "linux" else _start_by_psutil(pid)


def _linux_start(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    # The name, in parentheses, may contain anything; state is the 3rd field and the start the 22nd.
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else f"{boot}/{fields[19]}"


def _start_by_psutil(pid: int) -> str | None:
    import psutil  # noqa: PLC0415 - slow to import, and of no use on Linux

    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else f"{process.create_time():.2f}"
    except psutil.Error:
        return None
