"""A stream of bytes to a server, on grpcio's public API."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import grpc

__all__ = ["PublicStream", "Stream", "StreamBrokenError"]


class StreamBrokenError(Exception):
    """The call has failed, or was cancelled; its text says why."""


class Stream(Protocol):
    """A call whose messages are made when they can be written."""

    def wake(self) -> None:
        """Sends what there is, now or once the message before is written; does not wait."""

    def receive(self) -> Iterator[bytes]:
        """Yields the server's messages; raises StreamBrokenError unless the call ended well."""

    def cancel(self) -> None:
        """Ends the call."""

    def close(self) -> None:
        """Ends the call, and releases it; on the thread of `receive`, after that."""


class PublicStream:
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
        self._next_message = next_message
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address, options=options)
        call: Any = self._channel.stream_stream(method)
        self._call: Any = call(self._messages(), metadata=metadata)

    def wake(self) -> None:
        """Sends messages on a thread of gRPC's."""
        self._wakes.put(True)

    def receive(self) -> Iterator[bytes]:
        """Yields the server's messages."""
        try:
            yield from self._call
        except grpc.RpcError as error:
            details = getattr(error, "details", None)
            raise StreamBrokenError(str(error if details is None else details())) from error

    def cancel(self) -> None:
        """Ends the call."""
        self._call.cancel()
        self._wakes.put(False)

    def close(self) -> None:
        """Ends the call, and the channel."""
        self.cancel()
        self._channel.close()

    def _messages(self) -> Iterator[bytes]:
        while self._wakes.get():
            while (message := self._next_message()) is not None:
                yield message
