"""The callbacks of one program: the functions that XLA calls, and the handling of failures."""

from __future__ import annotations

import functools
import itertools
import re
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.callbacks.callback_messages import (
    AHEAD_BYTES,
    CallbackTypes,
    zeros,
)
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["ProgramCallbacks"]

_MARK = re.compile(r"sps callback (\d+)\.")


class _Failed(Exception):  # noqa: N818 - passes through XLA, which keeps the text alone
    def __init__(self, number: int) -> None:
        super().__init__(f"sps callback {number}.")


class ProgramCallbacks:
    """The callbacks of one program; the client keeps their functions while this lives.

    Args:
      calls: The calls of the session.
      key: The client's number of the program.
      types: The types of each callback.
      names: The names of their functions.
      is_spread: Whether the program runs on several devices. If a function fails, the others would
        wait for that device until XLA ends the process. So the program continues with zeros as
        results, and fails at its end; so do all runs of it at that time.
    """

    error_prefix = "CpuCallback error calling callback: "

    def __init__(
        self,
        calls: SessionCallbacks,
        key: int,
        types: Sequence[CallbackTypes],
        names: Sequence[str],
        *,
        is_spread: bool = False,
    ) -> None:
        self.key = key
        self.types = types
        self.names = names
        self.name = ""
        self._calls = calls
        self._lock = threading.Lock()
        self._running: tuple[Operation, ...] = ()
        self._failures: dict[int, StatusError] = {}
        self._numbers = itertools.count(1)
        self._is_spread = is_spread
        self._failed: dict[Operation, StatusError] = {}
        self._return_at_once = all(
            not one.results and sum(a.nbytes for a in one.arguments) <= AHEAD_BYTES for one in types
        )

    def __del__(self) -> None:
        self._calls.send_dropped(self.key)

    @property
    def running(self) -> tuple[Operation, ...]:
        """Operations that run the program now."""
        return self._running

    @property
    def never_wait(self) -> bool:
        """Whether XLA need not wait for any of the callbacks now."""
        return self._return_at_once and self._calls.has_none_ahead

    def functions(self) -> list[Callable[..., Any]]:
        """Returns the functions that XLA calls, one for each callback."""
        # (Not this object itself: XLA drops functions some time after their program.)
        program = weakref.ref(self)
        return [functools.partial(_call, program, index) for index in range(len(self.types))]

    def run(self, operation: Operation, work: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Runs the program as a part of an operation, whose end releases its calls."""
        if not operation.runs_here:
            self._calls.await_order()
        with self._lock:
            self._running = (*self._running, operation)
        operation.add_callback(self._calls.release_abandoned, is_urgent=False)
        try:
            made = work()
        except Exception as error:
            found = _MARK.search(str(error))
            failure = self._failures.pop(int(found[1]), None) if found else None
            if failure is None:
                raise
            raise failure.copy() from None
        finally:
            with self._lock:
                self._running = tuple(o for o in self._running if o is not operation)
                late = self._failed.pop(operation, None)
                if not self._running:
                    self._failures.clear()
        if late is not None:
            raise late.copy()
        return made

    def step_aside(self) -> None:
        """Lets the slices run programs that do not depend on those that wait here."""
        for operation in self.running:
            operation.step_aside()

    def call(self, index: int, arguments: Sequence[Any]) -> Any:
        """Calls a function of the client for XLA; returns its results."""
        results = self.types[index].results
        running = self._running
        # (XLA does not report which run of the program calls.)
        operation = running[0] if len(running) == 1 else None
        if self._has_failed(running) and (self._is_spread or not results):
            return zeros(results)
        try:
            if operation is not None:
                if not results and self._calls.call_ahead(self, index, arguments, operation):
                    return ()
                # (With several devices functions may wait for each other.)
                if not self._is_spread or not results:
                    self._calls.await_before(self, operation)
                    if operation.held_error is not None and not self._is_spread:
                        raise operation.held_error.copy()
            return self._calls.call(self, index, arguments)
        except Exception as raised:  # noqa: BLE001 - the program's, whatever it is
            error = from_exception(raised).copy()
        if self._is_spread:
            with self._lock:
                for operation in self._running:
                    self._failed.setdefault(operation, error)
            return zeros(results)
        # XLA's text has this error's number, by which `run` finds the original. (A new error, as
        # XLA keeps it for a while, with all frames that it passed through.)
        number = next(self._numbers)
        self._failures[number] = error
        raise _Failed(number)

    def _has_failed(self, running: Sequence[Operation]) -> bool:
        """Whether a callback of each run has failed already."""
        return bool(running) and all(o.held_error or o in self._failed for o in running)


def _call(program: weakref.ref[ProgramCallbacks], index: int, *arguments: Any) -> Any:
    called = program()
    if called is None:
        raise StatusError(Code.INTERNAL, "a program that was dropped calls back")
    return called.call(index, arguments)
