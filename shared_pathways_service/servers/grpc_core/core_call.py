"""One call of a `CoreServer`: starts operations of grpcio's core and waits for their ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["RECEIVED", "SENT", "CallOver", "CoreCall", "message_of"]

_NO_FLAGS = 0
#: More messages follow: core may hold this one back, to write several at once.
_MORE_FOLLOWS = 1

#: Tags of operations: a message arrived, or none will; one was sent, or could not be.
RECEIVED, SENT = "received", "sent"
_CLOSED, _ENDED, _WOKEN = "closed", "ended", "woken"


class CallOver(Exception):  # noqa: N818 - not an error
    """The client has gone, or the server stops."""


class CoreCall:
    """One call; all but `send_soon`, `cancel`, `wake` and `fail` is for the call's own thread.

    `events` is the queue for the ends of its operations, and of no other call.
    """

    def __init__(self, call: Any, events: Any, metadata: Any) -> None:
        self._call = call
        self._events = events
        self.metadata = dict(metadata)
        self.is_over = False
        self._opened = False
        self._woken = False
        self._failure: StatusError | None = None
        # Operations: started by the call's thread, by any thread, and ended.
        self._begun_here = 0
        self._begun = 0
        self._finished = 0
        # Other threads send messages too, but none may once the call's thread has ended it.
        self._lock = threading.Lock()
        self._ended = False

    def begin(self) -> None:
        """Starts watching for the end of the call."""
        self._begin_here(_CLOSED, cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS))

    def messages(self) -> Iterator[bytes]:
        """Yields the client's messages."""
        while True:
            message = self.receive()
            if message is None:
                return
            yield message

    def receive(self) -> bytes | None:
        """Returns the next message; None if there are no more. Raises the argument of `fail`."""
        self.receive_soon()
        while (event := self.next_event()).tag is not RECEIVED:
            if self._failure is not None:
                raise self._failure
        message = message_of(event)
        if message is None and self.is_over:
            raise CallOver
        return message

    def send(self, message: bytes) -> None:
        """Sends a message; returns when core has taken it."""
        self.send_soon(message, more_follows=False)
        while (event := self.next_event()).tag is not SENT:
            pass
        if not event.success or self.is_over:
            raise CallOver

    def receive_soon(self) -> None:
        """Requests the next message; `next_event` returns its arrival."""
        self._begin_here(RECEIVED, cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def send_soon(self, message: bytes, *, more_follows: bool) -> bool:
        """Sends a message, on any thread, one at a time; `next_event` returns its end.

        If it returns False, the call has ended, and there will be no event.
        """
        flags = _MORE_FOLLOWS if more_follows else _NO_FLAGS
        with self._lock:
            if self._ended:
                return False
            self._begin(SENT, *self._opening(), cygrpc.SendMessageOperation(message, flags))
            return True

    def next_event(self, deadline: float | None = None) -> Any:
        """Waits for the end of an operation, whose tag the event has.

        The deadline is by `time.time`; None: no limit, as the end of the call ends all operations.
        """
        event = self._events.poll(deadline=deadline)
        if event.completion_type == cygrpc.CompletionType.queue_timeout:
            return event
        self._finished += 1
        if event.tag is _CLOSED:
            self.is_over = self.is_over or event.batch_operations[0].cancelled()
        return event

    def wait(self, timeout_s: float) -> None:
        """Waits until `wake` is called or the call is over, at most for the given time."""
        deadline = time.time() + timeout_s
        while not (self._woken or self.is_over):
            event = self.next_event(deadline)
            if event.completion_type == cygrpc.CompletionType.queue_timeout:
                return

    def wake(self) -> None:
        """Ends `wait`, on any thread."""
        self._woken = True
        self._post_event()

    def fail(self, error: StatusError) -> None:
        """Lets the waiting `receive` raise an error, on any thread.

        If the message came first, nothing happens: the next wait ignores the event.
        """
        self._failure = error
        self._post_event()

    def _post_event(self) -> None:
        with self._lock:
            if not self._ended:
                # An empty batch ends at once.
                self._begin(_WOKEN)

    def cancel(self) -> None:
        """Ends the call, on any thread: open operations fail."""
        with self._lock:
            if not self._ended:
                self._call.cancel()

    def end(self, error: StatusError | None, message: bytes | None = None) -> None:
        """Sends a last message and the status, once; after that no operation can start."""
        code, details = (0, "") if error is None else (error.code.value, error.message)
        with self._lock:
            operations = self._opening()
            if message is not None:
                operations.append(cygrpc.SendMessageOperation(message, _NO_FLAGS))
            operations.append(
                cygrpc.SendStatusFromServerOperation(
                    (), code, details.encode(errors="replace"), _NO_FLAGS
                )
            )
            self._ended = True
            self._begin(_ENDED, *operations)

    def give_up(self) -> None:
        """Ends the call without a status."""
        with self._lock:
            self._ended = True
            self._call.cancel()

    def drain(self, timeout_s: float) -> bool:
        """Waits for the client to read all of an ended call; returns whether it has."""
        # (core would wait a millisecond for a deadline of now.)
        deadline = time.time() + timeout_s if timeout_s else 0.0
        while self._under_way():
            event = self.next_event(deadline)
            if event.completion_type == cygrpc.CompletionType.queue_timeout:
                return False
        return True

    def _under_way(self) -> int:
        with self._lock:
            return self._begun_here + self._begun - self._finished

    def _opening(self) -> list[Any]:
        """Returns the operations before the first message or status."""
        if self._opened:
            return []
        self._opened = True
        return [cygrpc.SendInitialMetadataOperation((), _NO_FLAGS)]

    def _begin_here(self, tag: str, operation: Any) -> None:
        self._start(tag, operation)
        self._begun_here += 1

    def _begin(self, tag: str, *operations: Any) -> None:
        """Starts operations; the lock is held."""
        self._start(tag, *operations)
        self._begun += 1

    def _start(self, tag: str, *operations: Any) -> None:
        refusal = self._call.start_server_batch(operations, tag)
        if refusal:
            raise RuntimeError(f"grpcio's core refuses the operation {tag}: error {refusal}")


def message_of(event: Any) -> bytes | None:
    """Returns the received message; None if there are no more."""
    message: bytes | None = event.batch_operations[-1].message()
    return message
