"""Work that is started and ends elsewhere: what is queued behind it can start meanwhile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.in_flight import InFlight, Pace
from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["StartedOperation"]

#: Starts the work: returns its arrays, and calls back with its error, or None.
StartWork = Callable[[Callable[[StatusError | None], None]], Sequence[Any]]


class StartedOperation(Operation):
    """An operation on one epoch that settles when the work has ended, not when it was started.

    Its outputs have their arrays from the start, for what is started behind it.

    Args:
      name: The name of the work.
      start: Starts the work.
      nbytes: The bytes of its results.
      pace: That of the program.
      others: As for `Operation`.
    """

    __slots__ = ("_end_error", "_has_ended", "_in_flight", "_made", "_nbytes", "_pace")

    def __init__(
        self, name: str, start: StartWork, *, nbytes: int, pace: Pace, **others: Any
    ) -> None:
        self._nbytes = nbytes
        self._pace = pace
        # Where it counts.
        self._in_flight: InFlight | None = None
        # The arrays, from the start until it settles; and whether and how the work has ended.
        self._made: Sequence[Any] | None = None
        self._has_ended = False
        self._end_error: StatusError | None = None
        super().__init__(name, functools.partial(start, self._end), **others)

    def _admit(self, executor: Executor, *, waits: bool) -> bool:
        in_flight = executor.in_flight
        if not in_flight.enter(self, self._nbytes, self._pace, waits=waits):
            return False
        with self._lock:
            if not self.done:
                self._in_flight = in_flight
                return True
        in_flight.leave(self)
        return True

    def _finish(self, error: StatusError | None, arrays: Sequence[Any]) -> None:
        with self._lock:
            if error is not None:
                # Nothing was started.
                self._has_ended = True
            else:
                # (Once it has settled it has no outputs.)
                for value, array in zip(self._outputs, arrays, strict=False):
                    value.array = array
                if not self._has_ended:
                    if not self.done:
                        self._made = arrays
                    return
                error = self._end_error
        self._settle(error, arrays)

    def _end(self, error: StatusError | None) -> None:
        with self._lock:
            self._has_ended = True
            self._end_error = error
            made = self._made
        if made is not None:
            self._settle(error, made)
        self._leave()

    def _leave(self) -> None:
        # Until the work has ended, it can block its devices.
        if self._has_ended:
            super()._leave()

    def _retire(self) -> None:
        super()._retire()
        self._made = None
        if self._in_flight is not None:
            self._in_flight.leave(self)
