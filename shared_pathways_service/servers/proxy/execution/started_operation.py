"""Work that is started and ends elsewhere: what is queued behind it can start meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.in_flight import Pace
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

    __slots__ = ("_nbytes", "_pace")

    def __init__(
        self, name: str, start: StartWork, *, nbytes: int, pace: Pace, **others: Any
    ) -> None:
        def run() -> Sequence[Any]:
            self.hold()
            try:
                return start(self._end)
            except BaseException:
                self._end(None)
                raise

        self._nbytes = nbytes
        self._pace = pace
        super().__init__(name, run, **others)

    def _admit(self, executor: Executor, *, waits: bool) -> bool:
        return executor.in_flight.enter(self, self._nbytes, self._pace, waits=waits)

    def _finish(self, error: StatusError | None, arrays: Sequence[Any]) -> None:
        with self._lock:
            # (Once it has settled it has no outputs.)
            for value, array in zip(self._outputs, arrays, strict=False):
                value.array = array
        super()._finish(error, arrays)

    def _leave(self) -> None:
        # Until the work has ended, it can block its devices.
        if self._hold is None or not self._hold.count:
            super()._leave()

    def _end(self, error: StatusError | None) -> None:
        self.release(error)
        self._leave()
