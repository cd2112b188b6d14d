"""A queue of the signals that this process gets."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FrameType
from typing import Any, Self

__all__ = ["SignalQueue", "handling"]

_Handler = Callable[[int, FrameType | None], Any] | signal.Handlers

_READ_BYTES = 4096


@contextlib.contextmanager
def handling(numbers: Collection[int], handler: _Handler) -> Iterator[None]:
    """Handles signals in the block; those that were ignored at its start stay ignored."""
    with contextlib.ExitStack() as undo:
        for number in numbers:
            # (By nohup, say, or in the background of a script.)
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            undo.callback(signal.signal, number, signal.signal(number, handler))
        yield


class SignalQueue:
    """The signals that the process gets in a block, in the order of their arrival; see `taking`.

    A signal that comes just before `wait` ends it. Python would run a handler only between two of
    its instructions, and so after a system call that has just begun.
    """

    def __init__(self, arrivals: int, numbers: Collection[int]) -> None:
        self._arrivals = arrivals
        self._numbers = numbers
        self._poll = select.poll()
        self._poll.register(arrivals, select.POLLIN)

    @classmethod
    @contextlib.contextmanager
    def taking(cls, numbers: Collection[int]) -> Iterator[Self]:
        """Queues these signals in the block, which must be on the main thread.

        Signals that were ignored at its start stay ignored. The end of a child, or its stop, ends a
        wait as well.
        """
        with contextlib.ExitStack() as undo:
            arrivals, noted = os.pipe()
            undo.callback(os.close, arrivals)
            undo.callback(os.close, noted)
            os.set_blocking(arrivals, False)
            os.set_blocking(noted, False)
            before = signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
            undo.callback(signal.set_wakeup_fd, before)
            undo.enter_context(handling(numbers, _do_nothing))
            # Where it is ignored, the system forgets how children ended.
            undo.callback(signal.signal, signal.SIGCHLD, signal.getsignal(signal.SIGCHLD))
            signal.signal(signal.SIGCHLD, _do_nothing)
            # A mask is inherited; nothing would end a wait for a child.
            mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            undo.callback(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
            yield cls(arrivals, numbers)

    def wait(self) -> None:
        """Waits for signals, or for a change of a child; returns at once if there was one."""
        self._poll.poll()

    def read(self) -> Sequence[int]:
        """Returns the signals that have arrived."""
        try:
            found = os.read(self._arrivals, _READ_BYTES)
        except BlockingIOError:
            return []
        return [number for number in found if number in self._numbers]


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Python notes a signal for `set_wakeup_fd` only if it has a handler."""
