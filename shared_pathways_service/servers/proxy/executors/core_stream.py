"""A stream of bytes to a server, on grpcio's private core: one thread reads, and sends what waits.

Messages are sent on the thread that has them, unless the one before is still being written. With
grpcio's public API each passes two other threads, and so does each answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from shared_pathways_service.servers.grpc_core.core_writer import CoreWriter
from shared_pathways_service.servers.proxy.executors.public_stream import StreamBrokenError

__all__ = ["CoreStream"]

_NO_FLAGS = 0
#: Tags of operations.
_STATUS, _METADATA, _SENT, _RECEIVED = "status", "metadata", "sent", "received"
_OK = 0


class CoreStream:
    """A `Stream`.

    Args:
      address: The server's address.
      method: The path of the method.
      metadata: The metadata of the call.
      options: Those of the channel.
      next_message: Returns the next message, None if there is none; called by one thread at a time.
    """

    def __init__(
        self,
        address: str,
        method: str,
        metadata: Sequence[tuple[str, str]] | None,
        options: Sequence[tuple[str, Any]],
        next_message: Callable[[], bytes | None],
    ) -> None:
        self._writer = CoreWriter(next_message, self._send, lambda _error: self.cancel())
        # Held while an operation is begun.
        self._lock = threading.Lock()
        # Those of the call below, and those that have ended: these belong to the reader.
        self._begun = 2
        self._finished = 0
        self._status: tuple[int, str] | None = None
        self._channel = cygrpc.Channel(address.encode(), tuple(options), None)
        opening = (
            cygrpc.SendInitialMetadataOperation(metadata, _NO_FLAGS),
            cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS),
        )
        self._call = self._channel.integrated_call(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,
            None,
            metadata,
            None,
            (
                (opening, _STATUS),
                ((cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),), _METADATA),
            ),
            None,
            None,
        )

    def wake(self) -> None:
        """Sends messages, now or once the one before is written; does not wait for that."""
        self._writer.wake()

    def receive(self) -> Iterator[bytes]:
        """Yields the server's messages, always on the same thread.

        Raises:
          StreamBrokenError: The call has failed, or was cancelled.
        """
        while self._begin(_RECEIVED, cygrpc.ReceiveMessageOperation(_NO_FLAGS)):
            event = self._received()
            message = None if event is None else event.batch_operations[0].message()
            if message is None:
                break
            yield message
            del event, message
        self._drain()
        code, details = self._status or (_OK, "")
        if code != _OK:
            raise StreamBrokenError(details)

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel(cygrpc.StatusCode.cancelled, "the stream was closed")

    def close(self) -> None:
        """Ends the call, and releases it; on the thread of `receive`, after that."""
        self.cancel()
        self._drain()
        self._channel.close(cygrpc.StatusCode.cancelled, "the stream was closed")

    def _send(self, message: bytes) -> None:
        self._begin(_SENT, cygrpc.SendMessageOperation(message, _NO_FLAGS))

    def _begin(self, tag: str, operation: Any) -> bool:
        with self._lock:
            if not self._call.operate((operation,), tag):
                return False
            self._begun += 1
            return True

    def _received(self) -> Any:
        """Returns the event of a received message; None if all operations have ended."""
        while True:
            with self._lock:
                # (Once the status is there and all have ended, core begins no other.)
                if self._status is not None and self._finished == self._begun:
                    return None
            event = self._channel.next_call_event()
            if event.completion_type == cygrpc.CompletionType.queue_timeout:
                continue
            self._finished += 1
            if event.tag is _RECEIVED:
                return event
            if event.tag is _SENT:
                self._writer.sent()
            elif event.tag is _STATUS:
                status = event.batch_operations[1]
                self._status = (status.code(), status.details())

    def _drain(self) -> None:
        while self._received() is not None:
            pass
