"""Lets a person interrupt a call of JAX that waits for a lost link, and cannot be interrupted.

A request waits while HTTP/2's flow control holds it back, as it does after some hundred requests
without an answer (jaxlib 0.10.2). Python then knows of a signal, but its handler runs only when the
call returns.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable

from shared_pathways_service.patience import timeouts
from shared_pathways_service.session.link_view import LinkView

__all__ = ["InterruptWatch"]

#: Seconds between two looks at the main thread.
_LOOK_S = 0.25
_UNSET = -1
_BYTES = 64

#: The watch whose socket Python writes to; Python has one such socket per process.
_active: InterruptWatch | None = None
#: Pairs of sockets that Python may still write to, because only the main thread can change that.
#: Both are kept: Python prints an error for each signal if the other end is closed.
_kept: list[tuple[socket.socket, socket.socket]] = []
#: How often the main thread ran a pending call.
_returns = 0


class InterruptWatch:
    """Notices SIGINT although the main thread does not return to Python.

    At the first one it says how to give the session up, and gives it up at the next one. It changes
    no signal handler, and does nothing while the link is up. It is off if another library has
    Python report signals to it (`signal.set_wakeup_fd`), and on other threads than the main one.

    Args:
      lost_link: Returns the link if it is lost.
      say: Prints a line.
      give_up: Ends the calls of JAX that wait, and the session.
    """

    def __init__(
        self,
        *,
        lost_link: Callable[[], LinkView | None],
        say: Callable[[str], object],
        give_up: Callable[[], object],
    ) -> None:
        self._lost_link = lost_link
        self._say = say
        self._give_up = give_up
        self._ours, self._pythons = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="sps-interrupts", daemon=True)
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begins to watch, where that is possible; `stop` must follow."""
        global _active  # noqa: PLW0603 - there is one per process
        self._pythons.setblocking(False)
        try:
            before = signal.set_wakeup_fd(self._pythons.fileno(), warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            return
        if before != _UNSET and not _close_kept(before):
            signal.set_wakeup_fd(before)
            return
        _forget_in_children()
        _active = self
        self._thread.start()

    def stop(self) -> None:
        """Ends the watch; a second call does nothing."""
        global _active  # noqa: PLW0603 - there is one per process
        if self._stopped.is_set():
            return
        is_free = True
        if _active is self:
            _active = None
            is_free = _reset(self._pythons)
        self._stopped.set()
        if self._thread.ident is not None:
            with contextlib.suppress(OSError):  # full: it wakes up in any case
                self._pythons.send(b"\0")
            if threading.current_thread() is not self._thread:
                self._thread.join()
        if is_free:
            self._ours.close()
            self._pythons.close()
        else:
            _kept.append((self._ours, self._pythons))

    def _run(self) -> None:
        """Looks whether the main thread returns to Python, and follows a signal if it does not."""
        awaited: int | None = None
        with contextlib.suppress(OSError):
            while True:
                is_interrupted = self._was_interrupted(_LOOK_S)
                # A wait that began before the signal, and goes on after it, has not handled it.
                if awaited is not None and _returns != awaited:
                    awaited = None
                if is_interrupted and awaited is not None:
                    self._follow(awaited)
                elif awaited is None and self._lost_link() is not None:
                    awaited = _returns
                    awaited = awaited if _count_next_return() else None

    def _follow(self, before: int) -> None:
        """Follows a signal, until the main thread is in Python again or the session is given up."""
        has_said = False
        # (Several signals at once are one.)
        deadline = timeouts.MAIN_THREAD_STUCK.deadline()
        while deadline.left_s:
            deadline.step(time.sleep)
            if _returns != before:
                return
        self._was_interrupted(0.0)
        while _returns == before:
            link = self._lost_link()
            if link is None:
                has_said = False
            elif not has_said:
                has_said = True
                lost_s = time.time() - link.lost_at
                self._say(
                    f"the link to the proxy has been lost for {lost_s:.0f} s; "
                    "interrupt (Ctrl-C) again to give the session up"
                )
            if (
                self._was_interrupted(timeouts.MAIN_THREAD_STUCK.s)
                and has_said
                and self._lost_link() is not None
            ):
                self._give_up()
                return

    def _was_interrupted(self, timeout: float) -> bool:
        """Waits for a signal; returns whether it was SIGINT, and raises OSError at the end."""
        deadline = time.monotonic() + timeout
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._ours], [], [], left_s)[0]:
                return False
            numbers = self._ours.recv(_BYTES)
            if self._stopped.is_set():
                raise OSError("the watch has ended")
            if signal.SIGINT in numbers:
                return True


def _reset(pythons: socket.socket) -> bool:
    """Ends Python's writes to a socket; returns False if it may still write to it."""
    try:
        current = signal.set_wakeup_fd(_UNSET)
    except ValueError:
        # Another file could get the number of a closed socket, and Python would write to it.
        return False
    if current not in (_UNSET, pythons.fileno()):
        signal.set_wakeup_fd(current)
    return True


def _close_kept(descriptor: int) -> bool:
    """Closes the kept pair that Python wrote to until now; returns whether there was one."""
    for pair in _kept:
        if pair[1].fileno() == descriptor:
            _kept.remove(pair)
            for each in pair:
                each.close()
            return True
    return False


@functools.cache
def _forget_in_children() -> None:
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """In a forked child: its signals are not the parent's."""
    global _active  # noqa: PLW0603 - there is one per process
    if _active is not None:
        _reset(_active._pythons)  # noqa: SLF001 - of this module
        _active = None


def _note_return(_: int | None) -> int:
    global _returns  # noqa: PLW0603 - only this function changes it
    _returns += 1
    return 0


# Kept for as long as the process lives: the main thread may call it late.
_pending = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_note_return)


def _count_next_return() -> bool:
    """Has the main thread run `_note_return` when it is in Python, after handlers of signals.

    Returns whether Python had room for it.
    """
    return bool(ctypes.pythonapi.Py_AddPendingCall(_pending, None) == 0)
