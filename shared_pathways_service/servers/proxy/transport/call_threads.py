"""Threads for calls: each call has one to itself, and those beyond their number wait."""

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
    """An executor that keeps nothing of what it had no thread for.

    (The standard library's leaves in its queue what it raises for where the system gives no thread,
    and counts one thread more as idle from then on than there is: a call that comes then waits.
    A subclass of it all the same: grpcio's public API takes no other.)

    Args:
      most: Threads at a time; each is made when it is needed, and kept.
      name: What their names begin with.
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
        """How many threads there may be at a time."""
        return self._most

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return len(self._waiting)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> futures.Future[T]:
        """Runs a function on a thread of its own, as soon as there is one.

        Raises:
          RuntimeError: The executor is shut down, or the system gives no thread.
        """
        future: futures.Future[T] = futures.Future()
        work = (future, functools.partial(fn, *args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("no more calls are taken")
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
        """Lets the threads end after what they do; see `concurrent.futures.Executor`."""
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
                # Nothing of it may be kept alive while the next is waited for.
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
    except BaseException as error:  # noqa: BLE001 - whoever has the future is told
        future.set_exception(error)
        # The error refers to this frame.
        del future, call
    else:
        future.set_result(result)
