"""Threads for calls: each call has its own, and calls beyond their number wait."""

from __future__ import annotations

import functools
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures
from typing import Any, TypeVar

__all__ = ["CallThreads"]

T = TypeVar("T")

_Work = tuple[futures.Future[Any], Callable[[], Any]]


class CallThreads(futures.ThreadPoolExecutor):
    """An executor that drops a call for which it had no thread.

    (The standard library's keeps such a call in its queue after it raised an error because the
    system had no thread, and counts one idle thread too many from then on: the next call waits.
    This is a subclass all the same: grpcio's public API accepts no other.) Each of the `most`
    threads is created when it is needed, and stays.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, name)
        self._most = most
        self._name = name
        self._lock = threading.Lock()
        self._running: list[threading.Thread] = []
        self._idle: list[queue.SimpleQueue[_Work | None]] = []
        self._waiting: deque[_Work] = deque()
        self._closed = False

    @property
    def most(self) -> int:
        """The most threads at a time."""
        return self._most

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return len(self._waiting)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Runs a function on a thread as soon as there is one; raises if there cannot be one."""
        future: futures.Future[T] = futures.Future()
        work = (future, functools.partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("no more calls are accepted")
            if self._idle:
                self._idle.pop().put(work)
            elif len(self._running) < self._most:
                # Not as the thread's argument, which it keeps.
                mailbox: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
                mailbox.put(work)
                name = f"{self._name}_{len(self._running)}"
                thread = threading.Thread(target=self._run, args=(mailbox,), name=name, daemon=True)
                thread.start()
                self._running.append(thread)
            else:
                self._waiting.append(work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the threads after their current calls; see `concurrent.futures.Executor`."""
        with self._lock:
            self._closed = True
            for mailbox in self._idle:
                mailbox.put(None)
            self._idle.clear()
            while cancel_futures and self._waiting:
                self._waiting.popleft()[0].cancel()
        if wait:
            for thread in self._running:
                thread.join()

    def _run(self, mailbox: queue.SimpleQueue[_Work | None]) -> None:
        while (work := mailbox.get()) is not None:
            while work is not None:
                _settle(*work)
                # Keep no reference to the call while waiting for the next.
                work = None
                with self._lock:
                    if self._waiting:
                        work = self._waiting.popleft()
                    elif self._closed:
                        return
                    else:
                        self._idle.append(mailbox)


def _settle(future: futures.Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 - the owner of the future gets it
        future.set_exception(error)
        # The error refers to this frame.
        del future, call
    else:
        future.set_result(result)
