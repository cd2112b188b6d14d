"""Python callbacks: a program on this proxy calls functions of its client and waits for them.

XLA calls what `ProgramCallbacks.functions` returns, on threads of its own. Each call sends its
arguments on the session's stream and waits for the answer; or for the end of the stream, of the
session, or of the operation that runs the program, so that no program waits for a client that has
gone, nor for a slice that is lost.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.glog import glog
from shared_pathways_service.servers.proxy.callback_messages import (
    Results,
    argument_bytes,
    call_messages,
)
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.status import Code, StatusError

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.program_callbacks import ProgramCallbacks

__all__ = ["LATE_S", "Outbox", "SessionCallbacks"]

_VERSION = 1
#: Calls of a session that may be out at a time.
_MOST_CALLS = 1024
#: Bytes that a call counts for beside its arrays.
_OVERHEAD = 512
#: Seconds after which a slice goes on with programs that do not depend on the one that waits. A
#: client that answers at once costs no thread.
_PATIENCE_S = 0.005
#: Seconds after which the log names a callback that is out.
LATE_S = 10.0
#: How XLA begins the text of a callback's error, on the CPU as well.
_PREFIX = "CpuCallback error calling callback: "


class Outbox(Protocol):
    """Takes messages to the client; never blocks."""

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        """Sends a message; holds `charge` until that is done."""

    def end(self) -> None:
        """Ends the stream."""


class _Call:
    """One call that is out."""

    def __init__(
        self, number: int, program: ProgramCallbacks, index: int, charge: HostCharge
    ) -> None:
        self.number = number
        self.program = program
        self.expected = program.types[index].results
        self.began = time.monotonic()
        self.operations = program.running
        self.results: Results | None = None
        self.error: StatusError | None = None
        self.done = threading.Event()
        self._charge = charge

    @property
    def is_forlorn(self) -> bool:
        """Whether every operation that may have made the call has settled without it."""
        return bool(self.operations) and all(o.done for o in self.operations)

    def fail(self, error: StatusError) -> None:
        if not self.done.is_set():
            self.error = error
            self.done.set()


class SessionCallbacks:
    """The calls of one session's programs into its client. Thread-safe.

    Args:
      memory: What arguments and results are charged to while a call is out.

    Attributes:
      total: Calls that were ever made.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        # Re-entrant: the garbage collector may drop a program while a message is sent.
        self._lock = threading.RLock()
        self._outbox: Outbox | None = None
        self._calls: dict[int, _Call] = {}
        self._closed = False
        self.total = 0

    @property
    def open(self) -> Sequence[tuple[str, float]]:
        """Name of the program and seconds of each call that is out."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        return [(call.program.name, now - call.began) for call in calls]

    @contextlib.contextmanager
    def attached(self, outbox: Outbox) -> Iterator[None]:
        """Sends calls on a stream, in place of an older one, as long as it is open."""
        ready = pb.CallbackProxyMessage(ready=pb.CallbackReady(version=_VERSION))
        with self._lock:
            if self._closed:
                raise StatusError(Code.NOT_FOUND, "the session has ended")
            older, self._outbox = self._outbox, outbox
            if older is not None:
                self._fail_all("the client has opened another stream for callbacks")
            outbox.put(ready.SerializeToString(), None)
        if older is not None:
            older.end()
        try:
            yield
        finally:
            with self._lock:
                if self._outbox is outbox:
                    self._outbox = None
                    self._fail_all("the client's stream for callbacks has ended")

    def receive(self, raw: bytes) -> None:
        """Takes a message of the client.

        Raises:
          StatusError: It is none.
        """
        try:
            message = pb.CallbackClientMessage.FromString(raw)
        except DecodeError as error:
            text = f"not a CallbackClientMessage: {error}"
            raise StatusError(Code.INVALID_ARGUMENT, text) from error
        kind = message.WhichOneof("message")
        number = getattr(message, kind).call if kind else 0
        with self._lock:
            call = self._calls.get(number)
        # Nobody waits for what was cancelled.
        if call is None or call.done.is_set():
            return
        try:
            if kind == "piece":
                _add(call, message.piece.data)
            elif message.answer.HasField("error"):
                call.fail(_error_of(message.answer.error))
            elif call.results is None:
                call.results = Results(call.expected, message.answer)
                _add(call, b"")
        except StatusError as error:
            call.fail(error.anew())
        except MemoryError as error:
            call.fail(StatusError(Code.RESOURCE_EXHAUSTED, f"no memory for results: {error}"))

    def call(self, program: ProgramCallbacks, index: int, arguments: Sequence[Any]) -> Any:
        """Calls a function of the client; returns its results.

        Raises:
          StatusError: It failed, or will not be answered.
        """
        call = self._begin(program, index, arguments)
        try:
            if not call.done.wait(_PATIENCE_S):
                program.step_aside()
            if not call.done.wait(LATE_S):
                glog(
                    "W",
                    f"A callback of program {program.name} has not returned for {LATE_S:g} s: "
                    "the program waits for its client",
                )
                call.done.wait()
        finally:
            self._end(call)
        if call.error is not None:
            raise call.error.anew()
        assert call.results is not None
        return call.results.arrays()

    def release_forlorn(self) -> None:
        """Lets go of calls whose operations have settled: by the loss of a slice, for one."""
        with self._lock:
            for call in self._calls.values():
                if call.is_forlorn:
                    call.fail(StatusError(Code.CANCELLED, "the program was given up"))

    def send_dropped(self, program: int) -> None:
        """Notifies the client that a program calls nothing any more."""
        dropped = pb.CallbackDropped(program=program)
        self._send(pb.CallbackProxyMessage(dropped=dropped).SerializeToString())

    def close(self) -> None:
        """Ends the stream and every call: the session has ended."""
        with self._lock:
            self._closed = True
            outbox, self._outbox = self._outbox, None
            self._fail_all("the session has ended")
        if outbox is not None:
            outbox.end()

    def _begin(self, program: ProgramCallbacks, index: int, arguments: Sequence[Any]) -> _Call:
        results = sum(one.nbytes for one in program.types[index].results)
        nbytes = argument_bytes(arguments)
        # The messages' own memory is held until they are sent.
        sent = self._memory.charge(nbytes, "a callback")
        held = self._memory.charge(results + _OVERHEAD, "a callback")
        with self._lock:
            if len(self._calls) >= _MOST_CALLS:
                text = f"{_MOST_CALLS} callbacks of this session are out; that is the limit"
                raise StatusError(Code.RESOURCE_EXHAUSTED, text)
            if self._outbox is None:
                raise StatusError(Code.UNAVAILABLE, "the client's stream for callbacks is not open")
            self.total += 1
            call = _Call(self.total, program, index, held)
            self._calls[call.number] = call
            outbox = self._outbox
        if call.is_forlorn:
            call.fail(StatusError(Code.CANCELLED, "the program was given up"))
        for message in call_messages(call.number, program.key, index, arguments):
            outbox.put(message, sent)
        return call

    def _end(self, call: _Call) -> None:
        with self._lock:
            del self._calls[call.number]
        if call.is_forlorn:
            cancelled = pb.CallbackCancelled(call=call.number)
            self._send(pb.CallbackProxyMessage(cancelled=cancelled).SerializeToString())

    def _send(self, message: bytes) -> None:
        with self._lock:
            if self._outbox is not None:
                self._outbox.put(message, None)

    def _fail_all(self, reason: str) -> None:
        for call in self._calls.values():
            call.fail(StatusError(Code.UNAVAILABLE, f"a callback was not answered: {reason}"))


def _add(call: _Call, data: bytes) -> None:
    results = call.results
    if results is None:
        raise StatusError(Code.INVALID_ARGUMENT, "a callback failed: its answer has no beginning")
    results.add(data)
    if results.is_whole:
        call.done.set()


def _error_of(error: pb.CallbackError) -> StatusError:
    text = error.traceback or f"{error.type}: {error.text}"
    return StatusError(Code.INTERNAL, _PREFIX + text)
