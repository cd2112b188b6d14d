"""Waits for JAX with a deadline, which JAX's own waits do not have.

A call that waits runs on a daemon thread, one per name. While it hangs, the thread gets no other
call, so a hung slice costs one thread however often it is probed.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Self

from shared_pathways_service.patience import timeouts

__all__ = ["Outcome", "Waiters"]


class Outcome:
    """The outcome of a call, which may be awaited with a deadline.

    Attributes:
      error: The error of the call; None if there was none, or it has not ended.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self.error: BaseException | None = None
        self._value: Any = None

    def finish(self, value: Any, error: BaseException | None) -> None:
        """Records the end of the call."""
        self._value = value
        self.error = error
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Waits; returns whether the call has ended."""
        return self._done.wait(max(0.0, seconds))

    def result(self) -> Any:
        """Returns the result of the call, or raises its error, once it has ended.

        The result is handed over: no reference to it is kept.
        """
        if self.error is not None:
            raise self.error
        value, self._value = self._value, None
        return value


class _Waiter:
    """A thread that makes calls, one after the other."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], object], Outcome] | None] = (
            queue.SimpleQueue()
        )
        self._last = Outcome()
        self._last.finish(None, None)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def call(self, function: Callable[[], object]) -> Outcome:
        """Makes the call; while the last one hangs, returns the outcome of that one instead."""
        if self._last.wait(0):
            self._last = Outcome()
            self._calls.put((function, self._last))
        return self._last

    def end(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, outcome = call
            value, error = None, None
            try:
                value = function()
            except BaseException as raised:  # noqa: BLE001 - raised where it is waited for
                error = raised
                # Clears its frames, which may hold arrays; the line numbers remain.
                traceback.clear_frames(raised.__traceback__)
            # Releases objects that the call holds, such as arrays, now and not with the next call.
            del function, call
            outcome.finish(value, error)
            del value, error, outcome


class Waiters:
    """Threads that wait, by name. Their creator closes them."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._waiters: dict[object, _Waiter] = {}
        self._lock = threading.Lock()

    def call(self, name: object, function: Callable[[], object]) -> Outcome:
        """Makes a call on the thread of a name."""
        with self._lock:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = _Waiter(f"{self._prefix}-{name}")
            return waiter.call(function)

    def call_all(
        self, functions: Mapping[int, Callable[[], object]], timeout: float
    ) -> dict[int, Outcome]:
        """Makes calls concurrently; returns their outcomes, ended or not, at the deadline."""
        outcomes = {name: self.call(name, function) for name, function in functions.items()}
        deadline = time.monotonic() + timeout
        for outcome in outcomes.values():
            outcome.wait(deadline - time.monotonic())
        return outcomes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the threads; one that hangs in JAX ends with the hang, or with the process."""
        with self._lock:
            waiters, self._waiters = list(self._waiters.values()), {}
        for waiter in waiters:
            waiter.end()
        deadline = timeouts.WAITERS_END.deadline()
        for waiter in waiters:
            waiter.thread.join(deadline.left_s)
