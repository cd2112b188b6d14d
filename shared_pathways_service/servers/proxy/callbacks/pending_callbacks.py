"""One call of a client's function that is not answered yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callback_messages import CallbackTypes, Results
from shared_pathways_service.servers.proxy.memory import HostCharge

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["Caller", "OpenCallback", "PendingCallback", "log_late"]


class Caller(Protocol):
    """A program that calls functions of its client, at run time or at compile time.

    Attributes:
      key: The client's number of the program.
      error_prefix: The prefix of a function's error text.
    """

    key: int
    name: str
    names: Sequence[str]
    types: Sequence[CallbackTypes]
    error_prefix: str

    @property
    def running(self) -> Sequence[Operation]:
        """Operations that run the program now; calls are not given up if there are none."""

    def step_aside(self) -> None:
        """Lets others run that would wait for the program."""


class OpenCallback(NamedTuple):
    """A view of a call that is not answered yet."""

    program: str
    function: str
    seconds: float


class PendingCallback:
    """One call, from its start until its answer is taken.

    Attributes:
      held: The operation that settles with the answer; None: XLA waits for the answer.
      operations: The operations of which one has made the call.
      is_done: Whether there are results, or an error.
      is_reported: Whether the log has named it as late.
    """

    def __init__(
        self,
        number: int,
        program: Caller,
        index: int,
        charge: HostCharge,
        held: Operation | None = None,
    ) -> None:
        self.number = number
        self.program = program
        self.function = program.names[index]
        self.held = held
        self.began = time.monotonic()
        self.operations = program.running if held is None else (held,)
        self.error: StatusError | None = None
        self.is_done = self.is_reported = False
        self._expected = program.types[index].results
        self._results: Results | None = None
        self._done = threading.Event() if held is None else None
        self._charge = charge

    @property
    def is_abandoned(self) -> bool:
        """Whether every operation that may have made the call has settled without it."""
        return bool(self.operations) and all(o.done for o in self.operations)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the answer; returns whether it is there. Only if XLA waits."""
        assert self._done is not None
        return self._done.wait(timeout_s)

    def results(self) -> tuple[object, ...]:
        """Returns the results, or raises the call's error."""
        if self.error is not None:
            raise self.error.copy()
        assert self._results is not None
        return self._results.arrays()

    def fail(self, error: StatusError) -> None:
        """Ends the call with an error, unless it has ended."""
        if not self.is_done:
            self.error = error
            self._end()

    def take(self, message: pb.CallbackClientMessage) -> None:
        """Handles a message of the client about this call."""
        if self.is_done:
            return
        try:
            if message.HasField("piece"):
                self._add(message.piece.data)
            elif message.answer.HasField("error"):
                error = message.answer.error
                text = error.traceback or f"{error.type}: {error.text}"
                self.fail(StatusError(Code.INTERNAL, self.program.error_prefix + text))
            elif self._results is None:
                self._results = Results(self._expected, message.answer)
                self._add(b"")
        except StatusError as raised:
            self.fail(raised.copy())
        except MemoryError as raised:
            self.fail(StatusError(Code.RESOURCE_EXHAUSTED, f"no memory for results: {raised}"))

    def _add(self, data: bytes) -> None:
        results = self._results
        if results is None:
            raise invalid_argument("a callback failed: its answer has no first message")
        results.add(data)
        if results.is_whole:
            self._end()

    def _end(self) -> None:
        self.is_done = True
        if self._done is not None:
            self._done.set()


def log_late(calls: Iterable[PendingCallback], late_s: float) -> None:
    """Logs once each call that has not been answered for so many seconds."""
    earliest = time.monotonic() - late_s
    for call in calls:
        if call.began < earliest and not call.is_reported:
            call.is_reported = True
            glog(
                "W",
                f"The callback {call.function} of program {call.program.name} has not returned "
                f"for {late_s:g} s: the program waits for its client",
            )
