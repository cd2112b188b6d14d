"""The send queue of one stream: `put` never blocks, and a peer that does not read is dropped."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import grpc

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.patience import timeouts

__all__ = ["Outbox", "StreamEnded"]

M = TypeVar("M")


class StreamEnded(Exception):  # noqa: N818 - an event, not a fault
    """The resource manager ended a stream, for a reason that is sent to the peer.

    Attributes:
      error: The error to send.
      code: The status code to send.
    """

    def __init__(self, error: SharedPathwaysError, code: grpc.StatusCode) -> None:
        super().__init__(str(error))
        self.error = error
        self.code = code


class Outbox(Generic[M]):
    """Queue of the messages for one stream; used on one event loop."""

    def __init__(self, limit: int, first: Iterable[M] = ()) -> None:
        """Creates the queue; the first messages do not count towards the limit.

        One message above the limit ends the stream with RESOURCE_EXHAUSTED.
        """
        self._waiting = collections.deque(first)
        self._limit = limit + len(self._waiting)
        self._news = asyncio.Event()
        self._overflowed = asyncio.Event()
        self._is_ending = False
        self._ended: StreamEnded | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, message: M) -> None:
        """Queues a message; drops it if the stream is ending."""
        if self._is_ending:
            return
        if len(self._waiting) >= self._limit:
            error = SharedPathwaysError(f"{self._limit} messages were not read in time")
            self.end(StreamEnded(error, grpc.StatusCode.RESOURCE_EXHAUSTED))
            self._waiting.clear()
            self._overflowed.set()
            return
        self._waiting.append(message)
        self._news.set()

    def end(self, why: StreamEnded | None = None) -> None:
        """Ends the stream after the queued messages; only the first call counts.

        Args:
          why: The reason; None: the call ends with OK.
        """
        if not self._is_ending:
            self._is_ending = True
            self._ended = why
            self._news.set()

    async def send(self, write: Callable[[M], Awaitable[None]]) -> None:
        """Writes the queued messages until the stream is ended; `write` waits for a slow peer.

        Raises:
          StreamEnded: The stream was ended with a reason.
        """
        sending = asyncio.create_task(self._send_in_order(write))
        overflow = asyncio.create_task(self._overflowed.wait())
        try:
            await asyncio.wait({sending, overflow}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            overflow.cancel()
            self._waiting.clear()
            # gRPC loses the status of a call whose write is cancelled halfway, and its client waits
            # for ever; so a write that can complete is left to complete.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), timeouts.LAST_WRITE.s)
            sending.cancel()
            sent, _ = await asyncio.gather(sending, overflow, return_exceptions=True)
        if isinstance(sent, Exception):
            raise sent
        if self._ended is not None:
            raise self._ended

    async def _send_in_order(self, write: Callable[[M], Awaitable[None]]) -> None:
        while True:
            while self._waiting:
                self._idle.clear()
                try:
                    await write(self._waiting.popleft())
                finally:
                    self._idle.set()
            if self._is_ending:
                return
            self._news.clear()
            await self._news.wait()
