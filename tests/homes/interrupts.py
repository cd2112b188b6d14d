"""Ctrl-C at a chosen moment, for calls that wait for a coroutine on another thread."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from types import TracebackType
from typing import Self

__all__ = ["Interrupt"]


class Interrupt:
    """One KeyboardInterrupt of the main thread, or two; use as a context manager."""

    def __init__(self) -> None:
        self.is_raised = False
        #: Whether another one has interrupted the wait for the clean-up after the first.
        self.is_raised_again = False
        self._may_raise_again = False

    def __enter__(self) -> Self:
        self._earlier = signal.signal(signal.SIGINT, self._raise)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        signal.signal(signal.SIGINT, self._earlier)

    async def send(self) -> None:
        """Interrupts the main thread in its wait for a future; returns once it is interrupted."""
        # (Again, as one that arrives just before the system call does not end the wait.)
        while not self.is_raised:
            if _main_thread_waits():
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(0.001)

    async def send_again(self) -> None:
        """Interrupts the main thread in its wait for the end of the call's thread."""
        self._may_raise_again = True
        while not self.is_raised_again:
            if "shutdown" in _names_of_main_thread()[:4]:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.sleep(0.001)

    def _raise(self, *_: object) -> None:
        if not self.is_raised:
            self.is_raised = True
            raise KeyboardInterrupt
        # (`send` may send one more than is needed.)
        is_wanted = self._may_raise_again and not self.is_raised_again
        if is_wanted and "shutdown" in _names_of_main_thread():
            self.is_raised_again = True
            raise KeyboardInterrupt


def _main_thread_waits() -> bool:
    """Whether the main thread waits for the result of a future."""
    return _names_of_main_thread()[:2] == ["wait", "result"]


def _names_of_main_thread() -> list[str]:
    """Returns the names of the functions that the main thread is in, the innermost first."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    names = [frame.f_code.co_name]
    while (caller := frame.f_back) is not None:
        frame = caller
        names.append(frame.f_code.co_name)
    return names
