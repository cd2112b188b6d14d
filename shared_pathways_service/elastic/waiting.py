"""Waits for JAX with a deadline: JAX's own waits have none.

A call that waits runs on a daemon thread, one a name; while it hangs, nothing else is given to that
thread, so a slice that hangs costs one thread however often it is asked.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, Self

__all__ = ["Outcome", "Waiters"]

#: Seconds that threads have to end at the close; one that hangs in JAX is left to the process.
_CLOSE_S: Final = 1.0


class Outcome:
    """How a call ends: it may be waited for, with a deadline."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: Any = None

    def finish(self, value: Any, error: BaseException | None) -> None:
        """The call has ended."""
        self._value = value
        self._error = error
        self._done.set()

    def wait(self, seconds: float) -> bool:
        """Waits; returns whether the call has ended."""
        return self._done.wait(max(0.0, seconds))

    def result(self) -> Any:
        """Returns what the call returned, or raises what it raised, once it has ended.

        What it returned is handed over: it is kept here no longer.
        """
        if self._error is not None:
            raise self._error
        value, self._value = self._value, None
        return value

    @property
    def error(self) -> BaseException | None:
        """What the call raised; None if nothing, or it has not ended."""
        return self._error


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

    @property
    def busy(self) -> bool:
        return not self._last.wait(0)

    def call(self, function: Callable[[], object]) -> Outcome:
        """Makes the call; while the last one hangs, that one's outcome is returned instead."""
        if not self.busy:
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
            except BaseException as raised:  # noqa: BLE001 - given to who waits
                error = raised
                # What its frames hold, arrays mostly, ends here; its lines stay.
                traceback.clear_frames(raised.__traceback__)
            # Whatever the call holds on to, arrays mostly, ends with it and not with the next one.
            del function, call
            outcome.finish(value, error)
            del value, error, outcome


class Waiters:
    """Threads that wait, by name. Closed by who made it."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._waiters: dict[object, _Waiter] = {}
        self._lock = threading.Lock()

    def call(self, name: object, function: Callable[[], object]) -> Outcome:
        """Makes a call on the thread of that name."""
        with self._lock:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = _Waiter(f"{self._prefix}-{name}")
            return waiter.call(function)

    def call_all(
        self, functions: Mapping[int, Callable[[], object]], timeout: float
    ) -> dict[int, Outcome]:
        """Makes calls side by side; returns their outcomes, ended or not, at the deadline."""
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
        """Ends the threads; what hangs in JAX ends with that, or with the process."""
        with self._lock:
            waiters, self._waiters = list(self._waiters.values()), {}
        for waiter in waiters:
            waiter.end()
        deadline = time.monotonic() + _CLOSE_S
        for waiter in waiters:
            waiter.thread.join(max(0.0, deadline - time.monotonic()))
