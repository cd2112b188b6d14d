"""The lifecycle of a server's process: its parent, its start, and stop signals.

Flags are in `flags`, the log's form in `runtime.glog`, and listening in `listening`. This module
imports neither gRPC nor JAX.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping

from shared_pathways_service.runtime.processes import Identity, identity_of

__all__ = [
    "STOP_SIGNALS",
    "CaughtSignals",
    "ProcessWatch",
    "StopSignals",
    "exit_with_parent",
    "install_stop_signals",
    "report_failure",
    "report_ready",
]

#: Signals that stop a server.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_PR_SET_PDEATHSIG = 1
#: Milliseconds until a watch without a free file descriptor tries again.
_RETRY_MS = 500


# ---- signals


@dataclasses.dataclass
class _Descriptor:
    fd: int

    def close(self) -> None:
        os.close(self.fd)


# ---- the end of another process


class ProcessWatch:
    """Calls back once when a process has ended; uses one thread, which `close` ends."""

    def __init__(self, identity: Identity, on_end: Callable[[], None]) -> None:
        """Starts the watch; calls back on its thread, also for a process that has ended already."""
        self._identity = identity
        self._on_end = on_end
        self._wake_read, self._wake_write = os.pipe()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"watch-{identity.pid}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; there is no callback after it returns."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        os.close(self._wake_write)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        with contextlib.closing(_Descriptor(self._wake_read)):
            ended = self._wait()
        if ended and not self._closed:
            self._on_end()

    if sys.platform == "linux":

        def _wait(self) -> bool:
            """Returns True when the process ended, False when the watch was closed."""
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            try:
                while (pidfd := self._open()) is None:
                    if poll.poll(_RETRY_MS):
                        return False
            except ProcessLookupError:
                return True
            with contextlib.closing(_Descriptor(pidfd)):
                if not self._identity.is_alive():
                    return True
                poll.register(pidfd, select.POLLIN)
                return any(fd == pidfd for fd, _ in poll.poll())

        def _open(self) -> int | None:
            """Returns a descriptor of the process; None: no descriptor is free."""
            try:
                return os.pidfd_open(self._identity.pid)
            except OSError as error:
                if error.errno not in {errno.EMFILE, errno.ENFILE}:
                    raise
                return None

    else:

        def _wait(self) -> bool:
            """Returns True when the process ended, False when the watch was closed."""
            with contextlib.closing(select.kqueue()) as queue:
                wanted = [
                    select.kevent(
                        self._identity.pid,
                        select.KQ_FILTER_PROC,
                        select.KQ_EV_ADD,
                        select.KQ_NOTE_EXIT,
                    ),
                    select.kevent(self._wake_read, select.KQ_FILTER_READ, select.KQ_EV_ADD),
                ]
                try:
                    queue.control(wanted, 0)
                except ProcessLookupError:
                    return True
                if not self._identity.is_alive():
                    return True
                return any(e.filter == select.KQ_FILTER_PROC for e in queue.control(None, 2))


def exit_with_parent(parent_pid: int, on_exit: Callable[[], None]) -> ProcessWatch | None:
    """Ends this process by `on_exit` when its parent ends; returns None if it had ended already.

    On Linux the kernel kills a direct child of `parent_pid` (SIGKILL, without `on_exit`) as soon as
    the parent's *thread* that started it has ended: start children from a thread that remains.
    Elsewhere, and if there is a wrapper process in between, a watch calls `on_exit`, and the caller
    closes it.
    """
    try:
        identity = identity_of(parent_pid)
    except ProcessLookupError:
        on_exit()
        return None
    if sys.platform == "linux" and os.getppid() == parent_pid:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        # The parent may have ended between the check and the call, which then has no effect.
        if os.getppid() != parent_pid:
            on_exit()
            return None
    return ProcessWatch(identity, on_exit)


# ---- start and stop


class CaughtSignals:
    """Catches signals of this process; with asyncio use `loop.add_signal_handler` instead.

    Python runs a signal handler on the main thread, once that runs Python code: not while it waits
    for a lock or reads and another thread received the signal, nor during a slow import. The
    handler may also interrupt code that holds a lock that it needs. So a separate thread, which the
    interpreter's C code wakes, makes the callback. It lives as long as the process.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        """Catches these signals from now on; call it on the main thread, once per process."""
        self._numbers = frozenset(numbers)
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in self._numbers:
            signal.signal(number, _do_nothing)

    def pass_to(self, on_signal: Callable[[int], None]) -> None:
        """Starts the thread; call it once.

        Args:
          on_signal: Called on that thread with the number of each signal, in the order of their
            arrival, also of those that came before this call.
        """
        threading.Thread(target=self._run, args=(on_signal,), name="signals", daemon=True).start()

    def _run(self, on_signal: Callable[[int], None]) -> None:
        while numbers := os.read(self._wake_read, 64):
            for number in numbers:
                # Other handled signals also wake this thread.
                if number in self._numbers:
                    on_signal(number)


def _do_nothing(_signum: int, _frame: object) -> None:
    """A placeholder for the handler that a signal needs to wake the thread."""


class StopSignals:
    """Handles SIGTERM and SIGINT on a thread that lives as long as the process.

    Attributes:
      on_stop: Called on that thread for every such signal; may be replaced.
    """

    def __init__(self, on_stop: Callable[[], None]) -> None:
        """Catches the signals; call it on the main thread, once per process."""
        self.on_stop = on_stop
        CaughtSignals(STOP_SIGNALS).pass_to(lambda _number: self.on_stop())


def install_stop_signals() -> threading.Event:
    """Returns an event that the first SIGTERM or SIGINT sets; see `StopSignals`."""
    stop = threading.Event()
    StopSignals(stop.set)
    return stop


def report_ready(ready_fd: int | None, *, port: int = 0, socket: str = "") -> None:
    """Reports this server's address to its starter: one line of JSON, then the end of the stream.

    The file descriptor is closed; None: no report.
    """
    if ready_fd is None:
        return
    _report(ready_fd, {"port": port, "socket": socket, "pid": os.getpid()})


def report_failure(ready_fd: int | None, error: str) -> None:
    """Reports instead of `report_ready` why this server does not start."""
    if ready_fd is not None:
        _report(ready_fd, {"error": error})


def _report(ready_fd: int, what: Mapping[str, object]) -> None:
    # The starter may have stopped waiting.
    with contextlib.closing(_Descriptor(ready_fd)), contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, f"{json.dumps(what)}\n".encode())
