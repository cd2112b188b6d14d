"""Calls a session's functions in a child process, one after the other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from shared_pathways_service.servers.colocated.child_process import ChildProcess
from shared_pathways_service.servers.colocated.python_messages import (
    Buffer,
    encode,
    sizes_of,
)
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
)

__all__ = ["PythonProcess"]

_Results = futures.Future[list[bytearray]]


class PythonProcess:
    """Starts the process when it is first needed, and again if it has ended. Thread-safe.

    Args:
      devices: How many devices it has.
    """

    def __init__(self, devices: int) -> None:
        self._devices = devices
        # It also starts the process, which ends with the thread that started it.
        self._thread = futures.ThreadPoolExecutor(1, "colocated-python")
        self._lock = threading.Lock()
        self._child: ChildProcess | None = None
        #: The call that runs, unless it was abandoned.
        self._current: _Results | None = None
        self._outstanding = 0
        self._is_closed = False

    @property
    def outstanding(self) -> int:
        """The number of calls that wait or run."""
        return self._outstanding

    def put(
        self,
        number: int,
        name: str,
        pickled: bytes,
        *,
        device_ids: Sequence[int],
        buffers: Sequence[Buffer],
        sizes: Sequence[int | None],
    ) -> _Results:
        """Calls a function after those that were put before.

        Args:
          number: The number of the function in this session.
          name: Its name.
          pickled: The function, as JAX's client pickled it.
          device_ids: The devices of all arguments and results, in the order of their pieces.
          buffers: The pieces of all arguments.
          sizes: The bytes of each piece of the results, None for a string.

        Raises:
          StatusError: It has too many arguments or results for a message.
        """
        try:
            beginning = encode({"call": number, "devices": list(device_ids)}, sizes_of(buffers))
            encode({}, [size or 0 for size in sizes])
        except ValueError as error:
            raise StatusError(Code.RESOURCE_EXHAUSTED, f"{name}: {error}") from error

        def call() -> list[bytearray]:
            try:
                child = self._start()
                child.load(number, pickled)
                return child.call(beginning, buffers, sizes)
            except StatusError as error:
                raise StatusError(error.code, f"{name}: {error.message}") from None
            except Exception as error:
                raise StatusError(Code.ABORTED, f"{name}: {self._end(error)}") from error

        made: _Results = futures.Future()
        with self._lock:
            self._outstanding += 1
        made.add_done_callback(self._count_end)
        try:
            self._thread.submit(self._run, made, call)
        except RuntimeError:  # closed
            made.cancel()
        return made

    def drop(self, number: int) -> None:
        """Frees a function once those before it have been called."""

        def forget() -> None:
            if self._child is not None:
                self._child.drop(number)

        with contextlib.suppress(RuntimeError):  # closed: the process has ended
            self._thread.submit(forget)

    def abandon(self, call: _Results) -> None:
        """Ends a call that is not waited for any more, and the process if it runs the call."""
        if call.cancel():
            return
        with self._lock:
            if self._current is call:
                self._current = None
                self._kill()

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            self._is_closed = True
            self._kill()
        self._thread.submit(self._end, None)
        self._thread.shutdown(wait=False)

    def _count_end(self, _call: futures.Future[Any]) -> None:
        with self._lock:
            self._outstanding -= 1

    def _run(self, made: _Results, call: Callable[[], list[bytearray]]) -> None:
        with self._lock:
            if not made.set_running_or_notify_cancel():
                return
            self._current = made
        buffers: list[bytearray] = []
        failure: StatusError | None = None
        try:
            buffers = call()
        except Exception as error:  # noqa: BLE001 - the operation gets it
            failure = from_exception(error).copy()
        with self._lock:
            is_abandoned = self._current is None
            self._current = None
        if is_abandoned:  # killed, perhaps after it had answered: not for the next call
            self._end(None)
        if failure is None:
            made.set_result(buffers)
        else:
            made.set_exception(failure)

    def _start(self) -> ChildProcess:
        with self._lock:
            if self._is_closed or self._current is None:
                raise StatusError(Code.CANCELLED, "it was abandoned")
            if self._child is None:
                self._child = ChildProcess(self._devices)
            return self._child

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _end(self, error: Exception | None) -> str:
        """Ends the process, if there is one; returns what has happened."""
        about = "" if error is None else str(error) or type(error).__name__
        child = self._child
        if child is None:
            return about
        # (Until it has ended it can be killed: it has a moment to end by itself.)
        ended = child.end(error)
        with self._lock:
            self._child = None
        return f"{ended}: {about}"
