"""Python callbacks: a program on this proxy calls functions of its client and waits for them.

XLA calls what `ProgramCallbacks.functions` returns, on threads of its own. Each call sends its
arguments on the session's stream and waits for the answer; or for the end of the stream, of the
session, or of the operation that runs the program, so that no program waits for a client that has
gone, nor for a slice that is lost.

A call without results may let XLA go on (`SessionCallbacks.call_ahead`): then it is the program's
operation that waits, which settles when the call is answered.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.proxy.callbacks.callback_messages import (
    AHEAD_BYTES,
    argument_bytes,
    call_messages,
)
from shared_pathways_service.servers.proxy.callbacks.pending_callbacks import (
    Caller,
    OpenCallback,
    PendingCallback,
    log_late,
)
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.status_errors import Code, StatusError, from_exception

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.callbacks.program_callbacks import ProgramCallbacks
    from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["LATE_S", "Outbox", "SessionCallbacks"]

_VERSION = 1
#: Calls of a session that may be out at a time; and those of them for which XLA does not wait.
_MOST_CALLS = 1024
_MOST_AHEAD = 256
#: Bytes that a call counts for beside its arrays.
_OVERHEAD = 512
#: Seconds after which a slice goes on with programs that do not depend on the one that waits. A
#: client that answers at once costs no thread.
_PATIENCE_S = 0.005
#: Seconds that a program with callbacks waits for those of earlier programs, so that functions are
#: called in the programs' order where they return soon.
_ORDER_S = 0.02
#: Seconds after which a callback that is out is late: the log and the status name it.
LATE_S = 10.0
#: Seconds between two looks for late callbacks, at most.
_LOOK_S = 1.0


class Outbox(Protocol):
    """Takes messages to the client; never blocks."""

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        """Sends a message; holds `charge` until that is done."""

    def end(self) -> None:
        """Ends the stream."""


class _Lanes:
    """The calls of one operation that are out and for which XLA does not wait.

    Those that one thread makes are made in its order; over several devices there are several.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.calls = 0


class SessionCallbacks:
    """The calls of one session's programs into its client. Thread-safe.

    Args:
      memory: What arguments and results are charged to while a call is out.

    Attributes:
      total: Calls that were ever made.
    """

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._calls: dict[int, PendingCallback] = {}
        # Of those, the ones for which XLA does not wait, by their operation.
        self._lanes: dict[Operation, _Lanes] = {}
        self._ahead = 0
        self._lane_ended = threading.Condition(self._lock)
        # The client's numbers of programs; None wakes the thread that reads them.
        self._dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._closed = False
        self.total = 0

    @property
    def open(self) -> Sequence[OpenCallback]:
        """The calls that are out."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        return [OpenCallback(c.program.name, c.function, now - c.began) for c in calls]

    @property
    def has_none_ahead(self) -> bool:
        """Whether a program may call now in its turn: no function of an earlier one is out."""
        return not self._lanes

    @contextlib.contextmanager
    def attached(self, outbox: Outbox) -> Iterator[None]:
        """Sends calls on a stream, in place of an older one, as long as it is open."""
        ready = pb.CallbackProxyMessage(ready=pb.CallbackReady(version=_VERSION))
        with self._lock:
            if self._closed:
                raise StatusError(Code.NOT_FOUND, "the session has ended")
            older, self._outbox = self._outbox, outbox
            failed = [] if older is None else list(self._calls.values())
            outbox.put(ready.SerializeToString(), None)
        self._fail(failed, "the client has opened another stream for callbacks")
        if older is not None:
            older.end()
        ended = threading.Event()
        watch = threading.Thread(None, self._watch, "callback-watch", (ended,), daemon=True)
        try:
            watch.start()
            yield
        finally:
            ended.set()
            self._dropped.put(None)
            failed = []
            with self._lock:
                if self._outbox is outbox:
                    self._outbox = None
                    failed = list(self._calls.values())
            self._fail(failed, "the client's stream for callbacks has ended")
            if watch.ident is not None:
                watch.join()

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
        # (Calls that were given up are not there any more.)
        call = self._calls.get(number)
        if call is not None:
            call.take(message)
            self._settle([call])

    def call(self, program: Caller, index: int, arguments: Sequence[Any]) -> Any:
        """Calls a function of the client; returns its results.

        Raises:
          StatusError: It failed, or will not be answered.
        """
        call = self._begin(program, index, arguments, None)
        try:
            if not call.wait(_PATIENCE_S):
                program.step_aside()
                call.wait()
        finally:
            self._end(call)
        return call.results()

    def call_ahead(
        self, program: ProgramCallbacks, index: int, arguments: Sequence[Any], operation: Operation
    ) -> bool:
        """Calls a function without results; the operation settles once that is answered.

        Returns:
          False: XLA has to wait, as too many calls are out, or this one is large.

        Raises:
          StatusError: It cannot be called.
        """
        if argument_bytes(arguments) > AHEAD_BYTES:
            return False
        if self._ahead >= _MOST_AHEAD and not operation.runs_here:
            return False
        self._begin(program, index, arguments, operation)
        return True

    def await_ahead(self, operation: Operation | None, timeout_s: float | None) -> bool:
        """Waits until calls for which XLA does not wait are answered; returns whether they are.

        Args:
          operation: Whose calls; None: those of all.
          timeout_s: Seconds to wait at most.
        """

        def are_answered() -> bool:
            return not self._lanes if operation is None else operation not in self._lanes

        if are_answered():
            return True
        with self._lock:
            return self._lane_ended.wait_for(are_answered, timeout_s)

    def await_order(self) -> None:
        """Waits for the functions that earlier programs have called, for a moment at most."""
        self.await_ahead(None, _ORDER_S)

    def await_before(self, program: ProgramCallbacks, operation: Operation) -> None:
        """Waits for the functions that the same run of a program has called."""
        if not self.await_ahead(operation, _PATIENCE_S):
            program.step_aside()
            self.await_ahead(operation, None)

    def release_forlorn(self) -> None:
        """Lets go of calls whose operations have settled: by the loss of a slice, for one."""
        with self._lock:
            calls = [call for call in self._calls.values() if call.is_forlorn]
        for call in calls:
            call.fail(StatusError(Code.CANCELLED, "the program was given up"))
        self._settle(calls)

    def send_dropped(self, program: int) -> None:
        """Notifies the client soon that a program calls nothing any more.

        Takes no lock: the garbage collector calls this on threads that may hold any.
        """
        if self._outbox is not None:
            self._dropped.put(program)

    def close(self) -> None:
        """Ends the stream and every call: the session has ended."""
        with self._lock:
            self._closed = True
            outbox, self._outbox = self._outbox, None
            failed = list(self._calls.values())
        self._fail(failed, "the session has ended")
        if outbox is not None:
            outbox.end()

    def _begin(
        self, program: Caller, index: int, arguments: Sequence[Any], operation: Operation | None
    ) -> PendingCallback:
        results = sum(one.nbytes for one in program.types[index].results)
        nbytes = argument_bytes(arguments)
        # The messages' own memory is held until they are sent; that of calls ahead, until they are
        # answered, as they are many.
        sent = self._memory.charge(nbytes, "a callback")
        kept = results + _OVERHEAD if operation is None else nbytes + _OVERHEAD
        held = self._memory.charge(kept, "a callback")
        with self._lock:
            if len(self._calls) >= _MOST_CALLS:
                text = f"{_MOST_CALLS} callbacks of this session are out; that is the limit"
                raise StatusError(Code.RESOURCE_EXHAUSTED, text)
            if self._outbox is None:
                raise StatusError(Code.UNAVAILABLE, "the client's stream for callbacks is not open")
            self.total += 1
            call = PendingCallback(self.total, program, index, held, operation)
            self._calls[call.number] = call
            outbox = self._outbox
            lane = self._enter_lane(call)
        try:
            for message in call_messages(call.number, program.key, index, arguments, lane):
                outbox.put(message, sent)
        except Exception as error:  # noqa: BLE001 - whatever it is, the program fails with it
            call.fail(from_exception(error).anew())
        # (The end of the operation may have come before the call was known.)
        if call.is_forlorn:
            call.fail(StatusError(Code.CANCELLED, "the program was given up"))
        self._settle([call])
        return call

    def _enter_lane(self, call: PendingCallback) -> int:
        """Returns the number of the call's lane, in which it is now; 0: it is in none."""
        if call.held is None:
            return 0
        call.held.hold()
        lanes = self._lanes.get(call.held)
        if lanes is None:
            lanes = self._lanes[call.held] = _Lanes()
        lanes.calls += 1
        self._ahead += 1
        return lanes.numbers.setdefault(threading.get_ident(), call.number)

    def _settle(self, calls: Iterable[PendingCallback]) -> None:
        """Has operations settle that were held by calls which have ended."""
        for call in calls:
            operation = call.held
            if operation is None or not call.is_done:
                continue
            with self._lock:
                if self._calls.pop(call.number, None) is None:
                    continue
                self._ahead -= 1
                lanes = self._lanes[operation]
                lanes.calls -= 1
                if not lanes.calls:
                    del self._lanes[operation]
                    self._lane_ended.notify_all()
            self._send_cancelled(call)
            # (What waits for the operation may begin here.)
            operation.release(call.error)

    def _end(self, call: PendingCallback) -> None:
        with self._lock:
            del self._calls[call.number]
        self._send_cancelled(call)

    def _send_cancelled(self, call: PendingCallback) -> None:
        if call.is_forlorn:
            cancelled = pb.CallbackCancelled(call=call.number)
            self._send(pb.CallbackProxyMessage(cancelled=cancelled))

    def _send(self, message: pb.CallbackProxyMessage) -> None:
        with self._lock:
            if self._outbox is not None:
                self._outbox.put(message.SerializeToString(), None)

    def _fail(self, calls: Sequence[PendingCallback], reason: str) -> None:
        for call in calls:
            call.fail(StatusError(Code.UNAVAILABLE, f"a callback was not answered: {reason}"))
        self._settle(calls)

    def _watch(self, ended: threading.Event) -> None:
        """Notifies of dropped programs and logs late callbacks, until the stream ends."""
        while not ended.is_set():
            with contextlib.suppress(queue.Empty):
                program = self._dropped.get(timeout=min(LATE_S, _LOOK_S))
                if program is not None:
                    dropped = pb.CallbackDropped(program=program)
                    self._send(pb.CallbackProxyMessage(dropped=dropped))
            with self._lock:
                calls = list(self._calls.values())
            log_late(calls, LATE_S)
