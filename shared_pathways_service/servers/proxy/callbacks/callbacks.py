"""Python callbacks: a program on this proxy calls functions of its client and waits for them.

XLA calls the functions of `ProgramCallbacks.functions` on threads of its own. Each call sends its
arguments on the session's stream and waits for the answer, or for the end of the stream, the
session, or the operation that runs the program. So no program waits for a client that has gone, or
for a lost slice.

For a call without results XLA need not wait (`SessionCallbacks.call_ahead`): then the program's
operation settles when the call is answered.
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
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
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

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.execution.operations import Operation

__all__ = ["LATE_S", "Outbox", "SessionCallbacks"]

_VERSION = 1
#: The limits of a session's open calls, and of those for which XLA does not wait.
_MOST_CALLS = 1024
_MOST_AHEAD = 256
#: Bytes that a call counts in addition to its arrays.
_OVERHEAD = 512
#: Seconds after which a slice goes on with programs that do not depend on the waiting one. A client
#: that answers quickly costs no thread.
_PATIENCE_S = 0.005
#: Seconds that a program with callbacks waits for those of earlier programs, so that functions are
#: called in the order of the programs if they return soon.
_ORDER_S = 0.02
#: Seconds after which an open callback is late: the log and the status name it.
LATE_S = 10.0
#: The longest time between two checks for late callbacks, in seconds.
_LOOK_S = 1.0


class Outbox(Protocol):
    """Takes messages to the client; never blocks."""

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        """Sends a message; holds `charge` until it is sent."""

    def end(self) -> None:
        """Ends the stream."""


class _Lanes:
    """One operation's open calls for which XLA does not wait.

    The calls of one thread are made in order; with several devices there are several threads.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.calls = 0


class SessionCallbacks:
    """The calls of one session's programs to its client. Thread-safe."""

    def __init__(self, memory: HostMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._outbox: Outbox | None = None
        self._calls: dict[int, PendingCallback] = {}
        # The calls for which XLA does not wait, by operation.
        self._lanes: dict[Operation, _Lanes] = {}
        self._ahead = 0
        self._lane_ended = threading.Condition(self._lock)
        # The client's numbers of dropped programs; None wakes the thread that reads them.
        self._dropped: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._closed = False
        self.total = 0

    @property
    def open(self) -> Sequence[OpenCallback]:
        """The open calls."""
        now = time.monotonic()
        with self._lock:
            calls = list(self._calls.values())
        return [OpenCallback(c.program.name, c.function, now - c.began) for c in calls]

    @property
    def has_none_ahead(self) -> bool:
        """Whether a program may call now, as no function of an earlier program is open."""
        return not self._lanes

    @contextlib.contextmanager
    def attached(self, outbox: Outbox) -> Iterator[None]:
        """Sends calls on a stream, which replaces an older one, while it is open."""
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
        """Handles a message from the client."""
        try:
            message = pb.CallbackClientMessage.FromString(raw)
        except DecodeError as error:
            raise invalid_argument(f"not a CallbackClientMessage: {error}") from error
        kind = message.WhichOneof("message")
        number = getattr(message, kind).call if kind else 0
        # (Calls that were given up are no longer there.)
        call = self._calls.get(number)
        if call is not None:
            call.take(message)
            self._settle([call])

    def call(self, program: Caller, index: int, arguments: Sequence[Any]) -> Any:
        """Calls a function of the client; returns its results."""
        call = self._begin(program, index, arguments, None)
        try:
            if not call.wait(_PATIENCE_S):
                program.step_aside()
                call.wait()
        finally:
            self._end(call)
        return call.results()

    def call_ahead(
        self, program: Caller, index: int, arguments: Sequence[Any], operation: Operation
    ) -> bool:
        """Calls a function without results, whose answer settles the operation.

        Returns False if XLA must wait, as too many calls are open, or this one is large.
        """
        if argument_bytes(arguments) > AHEAD_BYTES:
            return False
        if self._ahead >= _MOST_AHEAD and not operation.runs_here:
            return False
        self._begin(program, index, arguments, operation)
        return True

    def await_ahead(self, operation: Operation | None, timeout_s: float | None) -> bool:
        """Waits until an operation's calls ahead (None: all) are answered, and returns whether."""

        def are_answered() -> bool:
            return not self._lanes if operation is None else operation not in self._lanes

        if are_answered():
            return True
        with self._lock:
            return self._lane_ended.wait_for(are_answered, timeout_s)

    def await_order(self) -> None:
        """Waits briefly for the functions that earlier programs have called."""
        self.await_ahead(None, _ORDER_S)

    def await_before(self, program: Caller, operation: Operation) -> None:
        """Waits for the functions that the same run of a program has called."""
        if not self.await_ahead(operation, _PATIENCE_S):
            program.step_aside()
            self.await_ahead(operation, None)

    def release_abandoned(self) -> None:
        """Ends calls whose operations have settled, e.g. by the loss of a slice."""
        with self._lock:
            calls = [call for call in self._calls.values() if call.is_abandoned]
        for call in calls:
            call.fail(StatusError(Code.CANCELLED, "the program was given up"))
        self._settle(calls)

    def send_dropped(self, program: int) -> None:
        """Reports soon to the client that a program calls nothing any more.

        Takes no lock: the garbage collector may call this on threads that hold any.
        """
        if self._outbox is not None:
            self._dropped.put(program)

    def close(self) -> None:
        """Ends the stream and all calls, at the end of the session."""
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
        # The memory of the messages is held until they are sent; that of calls ahead until they are
        # answered, as they are many.
        sent = self._memory.charge(nbytes, "a callback")
        kept = results + _OVERHEAD if operation is None else nbytes + _OVERHEAD
        held = self._memory.charge(kept, "a callback")
        with self._lock:
            if len(self._calls) >= _MOST_CALLS:
                text = f"{_MOST_CALLS} callbacks of this session are open, which is the limit"
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
            call.fail(from_exception(error).copy())
        # (The operation may have ended before the call was registered.)
        if call.is_abandoned:
            call.fail(StatusError(Code.CANCELLED, "the program was given up"))
        self._settle([call])
        return call

    def _enter_lane(self, call: PendingCallback) -> int:
        """Puts the call into a lane, and returns the lane's number; 0: none."""
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
        """Settles the operations that were held by calls which have ended."""
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
            # (Waiting operations may start here.)
            operation.release(call.error)

    def _end(self, call: PendingCallback) -> None:
        with self._lock:
            del self._calls[call.number]
        self._send_cancelled(call)

    def _send_cancelled(self, call: PendingCallback) -> None:
        if call.is_abandoned:
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
        """Reports dropped programs and logs late callbacks, until the stream ends."""
        while not ended.is_set():
            with contextlib.suppress(queue.Empty):
                program = self._dropped.get(timeout=min(LATE_S, _LOOK_S))
                if program is not None:
                    dropped = pb.CallbackDropped(program=program)
                    self._send(pb.CallbackProxyMessage(dropped=dropped))
            with self._lock:
                calls = list(self._calls.values())
            log_late(calls, LATE_S)
