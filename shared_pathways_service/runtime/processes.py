"""Identifies processes (an id alone may be reused), and signals exactly one process.

Files that name a process may be in a directory that several machines or containers share. From one
of them, nothing can be said about a process of another.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import functools
import hashlib
import os
import platform
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from shared_pathways_service.errors import PreflightError

__all__ = [
    "Identity",
    "Life",
    "container_key",
    "identity_of",
    "identity_of_child",
    "place_name",
    "signal_process",
]

#: Errors of a look at a process that say nothing about it.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


#: The PID namespace in which a Linux system starts (PROC_PID_INIT_INO); containers have others.
_FIRST_NAMESPACE: Final = "pid:[4026531836]"
_MACHINE_IDS: Final = ("/etc/machine-id", "/var/lib/dbus/machine-id")


class Life(enum.StrEnum):
    """What can be said here about a process."""

    RUNS = "runs"
    ENDED = "ended"
    UNKNOWN = "unknown"
    """It belongs to another machine, or to a container that this process cannot look into."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """A process, distinguished from a later one with the same id, and from those elsewhere.

    Attributes:
      pid: The process id.
      start: When it started, independent of changes of the wall clock where possible (Linux: the
        boot's id and clock ticks since the boot); only for comparison. Empty: it has ended.
      machine: Its machine, by id and name; empty: the machine has no id.
      namespace: Its PID namespace (Linux); empty: unknown, as in files of earlier releases.
    """

    pid: int
    start: str
    machine: str = ""
    namespace: str = ""

    def life(self) -> Life:
        """Returns whether it still runs; a process that has ended but is not reaped does not.

        Without a free file descriptor, any process with its id counts as this one: callers delete
        what ended processes leave. One that this user may not look at does not: it is another
        user's, with an id that was reused.
        """
        if not self.start:
            return Life.ENDED
        if not self._is_visible():
            return Life.ENDED if self._is_of_earlier_boot() else Life.UNKNOWN
        try:
            runs = _runs(self)
        except OSError:
            runs = _exists(self.pid)
        return Life.RUNS if runs else Life.ENDED

    def is_alive(self) -> bool:
        """Whether it certainly runs."""
        return self.life() is Life.RUNS

    def has_ended(self) -> bool:
        """Whether it certainly has ended: only then may others remove what is its own."""
        return self.life() is Life.ENDED

    def to_json(self) -> dict[str, Any]:
        """Returns the identity as plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Identity:
        """Makes the identity from plain data of `to_json`, also of earlier releases."""
        return cls(
            pid=int(data["pid"]),
            start=str(data["start"]),
            machine=str(data.get("machine", "")),
            namespace=str(data.get("namespace", "")),
        )

    def _is_visible(self) -> bool:
        """Whether processes of its machine and PID namespace can be looked at from here."""
        if sys.platform != "linux":
            return self.machine in ("", _machine())
        return self._boot == _boot_id() and self.namespace in ("", _namespace())

    def _is_of_earlier_boot(self) -> bool:
        """Whether this machine has restarted since.

        Containers often have the same machine id, and the same name, on several machines.
        """
        return (
            sys.platform == "linux"
            and self._boot != _boot_id()
            and bool(self.machine)
            and self.machine == _machine()
            and self.namespace == _namespace() == _FIRST_NAMESPACE
        )

    @property
    def _boot(self) -> str:
        return self.start.partition("/")[0]


def identity_of(pid: int | None = None) -> Identity:
    """Returns the identity of a process, by default of this one.

    Raises:
      ProcessLookupError: It has ended, or is one of another user that this one may not look at.
      PreflightError: This process cannot look at itself.
      OSError: The look failed for lack of a file descriptor or memory.
    """
    pid = os.getpid() if pid is None else pid
    start = _start_of(pid)
    if pid == os.getpid() and (start is None or not _is_proc_of_this_namespace()):
        raise PreflightError(
            "this process is not in /proc under its own id",
            hint="mount /proc in this container or sandbox: `mount -t proc proc /proc`, or "
            "`bwrap --proc /proc`, `unshare --mount-proc`",
        )
    if start is None:
        raise ProcessLookupError(f"no process {pid}")
    return Identity(pid=pid, start=start, machine=_machine(), namespace=_namespace())


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


def container_key() -> str:
    """Returns a short name for this container among all; empty outside of containers.

    A container here is what has a PID namespace of its own.
    """
    namespace = _namespace()
    if namespace in ("", _FIRST_NAMESPACE):
        return ""
    return hashlib.sha256(f"{_boot_id()} {namespace}".encode()).hexdigest()[:8]


def place_name() -> str:
    """Returns the name of this machine, and the key of this container, as a part of file names."""
    host = re.sub(r"[^A-Za-z0-9.]+", "-", platform.node()).strip("-.")[:64] or "unnamed"
    key = container_key()
    return f"{host}-{key}" if key else host


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
    """Whether a process here still runs; raises OSError if the look failed for lack of resources.

    (Of another machine or PID namespace, none does, though one may have the same id.)
    """
    if identity.namespace not in ("", _namespace()):
        return False
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


def _is_proc_of_this_namespace() -> bool:
    """Whether ids of processes mean there what they mean here.

    A sandbox with a PID namespace of its own may still have the /proc of the system around it.
    """
    if sys.platform != "linux":
        return True
    try:
        return Path("/proc/self").readlink() == Path(str(os.getpid()))
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return False


@functools.cache
def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


@functools.cache
def _machine() -> str:
    for path in _MACHINE_IDS:
        try:
            found = Path(path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeError):
            continue
        if found:
            return f"{found}@{platform.node()}"
    return "" if sys.platform == "linux" else platform.node()


def _namespace() -> str:
    """Returns this process's PID namespace; empty if it is unknown."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _start_by_psutil(pid: int) -> str | None:
    import psutil  # noqa: PLC0415 - slow to import, and of no use on Linux

    try:
        process = psutil.Process(pid)
        ended = process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
        return None if ended else f"{process.create_time():.2f}"
    except psutil.Error:
        return None
