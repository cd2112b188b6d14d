"""What every server is as a process: its life beside its parent, and how it is told to stop.

Flags are in `flags`, the log's form in `runtime.glog`, listening in `listening`. Nothing here
imports gRPC or JAX.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import signal
import sys
import threading
from collections.abc import Callable

from shared_pathways_service.runtime.processes import Identity, identity_of

__all__ = [
    "STOP_SIGNALS",
    "ProcessWatch",
    "StopSignals",
    "exit_with_parent",
    "install_stop_signals",
    "report_ready",
]

#: What asks a server to end.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)

_PR_SET_PDEATHSIG = 1


# ---- signals


@dataclasses.dataclass
class _Descriptor:
    fd: int

    def close(self) -> None:
        os.close(self.fd)


# ---- the end of another process


class ProcessWatch:
    """Calls back once when a process has ended; one thread, ended by `close`."""

    def __init__(self, identity: Identity, on_end: Callable[[], None]) -> None:
        """Starts to watch.

        Args:
          identity: Who is watched; one that has ended already is told of as well.
          on_end: Called on the watch's thread.
        """
        self._identity = identity
        self._on_end = on_end
        self._wake_read, self._wake_write = os.pipe()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"watch-{identity.pid}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the watch; nothing is called back any more once it returns."""
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
            try:
                pidfd = os.pidfd_open(self._identity.pid)
            except ProcessLookupError:
                return True
            with contextlib.closing(_Descriptor(pidfd)):
                if not self._identity.is_alive():
                    return True
                poll = select.poll()
                poll.register(pidfd, select.POLLIN)
                poll.register(self._wake_read, select.POLLIN)
                return any(fd == pidfd for fd, _ in poll.poll())

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
    """Lets this process end when its parent does, however the parent ends.

    On Linux the kernel kills a direct child of `parent_pid` (SIGKILL, without `on_exit`) as soon
    as the parent's *thread* that started it has ended: start children from a thread that stays.
    Elsewhere, and when a wrapper stands between, a watch calls `on_exit`.

    Args:
      parent_pid: Who must live.
      on_exit: Ends this process; called at once, on this thread, when the parent is gone already.

    Returns:
      The watch, for its owner to close; None when the parent was gone.
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
        # The parent may have ended between the look and the call, which then never fires.
        if os.getppid() != parent_pid:
            on_exit()
            return None
    return ProcessWatch(identity, on_exit)


# ---- start and stop


class StopSignals:
    """Takes SIGTERM and SIGINT as the wish to end; for asyncio use `loop.add_signal_handler`.

    Python runs a signal's handler on the main thread, once that gets to run Python: not while it
    waits for a lock and another thread took the signal, nor during a slow import. And it runs amid
    whatever the main thread does, which may hold the very lock that the handler needs. So a thread
    of its own, which the interpreter's C code wakes, calls back. It lives as long as the process.

    Attributes:
      on_stop: Called on that thread for every such signal; may be replaced.
    """

    def __init__(self, on_stop: Callable[[], None]) -> None:
        """Begins to take the signals; on the main thread, once a process."""
        self.on_stop = on_stop
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        threading.Thread(target=self._run, name="stop-signals", daemon=True).start()
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for sig in STOP_SIGNALS:
            signal.signal(sig, _leave_to_the_thread)

    def _run(self) -> None:
        while numbers := os.read(self._wake_read, 64):
            # Others with a handler wake this thread as well.
            if not set(numbers).isdisjoint(STOP_SIGNALS):
                self.on_stop()


def _leave_to_the_thread(_signum: int, _frame: object) -> None:
    """Stands in as the handler that a signal must have for the thread to be woken."""


def install_stop_signals() -> threading.Event:
    """Returns an event that is set by the first SIGTERM or SIGINT; see `StopSignals`."""
    stop = threading.Event()
    StopSignals(stop.set)
    return stop


def report_ready(ready_fd: int | None, *, port: int = 0, socket: str = "") -> None:
    """Tells who started this server where it serves: one line of JSON, then the end of the stream.

    Args:
      ready_fd: The descriptor to write to, which is closed; None: nobody asked.
      port: The TCP port; 0: none.
      socket: The Unix socket's path; empty: none.
    """
    if ready_fd is None:
        return
    line = json.dumps({"port": port, "socket": socket, "pid": os.getpid()}) + "\n"
    # Who asked may have stopped waiting.
    with contextlib.closing(_Descriptor(ready_fd)), contextlib.suppress(BrokenPipeError):
        os.write(ready_fd, line.encode())
