"""What is to be sent on one stream: the sender never waits, and who does not read is dropped."""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

import grpc

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["Outbox", "StreamEnded"]

M = TypeVar("M")

#: Seconds that a message on its way may take to leave when its stream ends.
_LEAVING_S = 1.0


class StreamEnded(Exception):  # noqa: N818 - what happened, not a fault of who catches it
    """The RM ended a stream, and the other side shall know why.

    Attributes:
      error: What it is told.
      code: With which status.
    """

    def __init__(self, error: SharedPathwaysError, code: grpc.StatusCode) -> None:
        super().__init__(str(error))
        self.error = error
        self.code = code


class Outbox(Generic[M]):
    """Messages on their way to one stream, in order; used on one event loop."""

    def __init__(self, limit: int, first: Iterable[M] = ()) -> None:
        """Makes one.

        Args:
          limit: Messages that may wait; one more ends the stream with RESOURCE_EXHAUSTED.
          first: Messages that wait already, beyond the limit.
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
        """Sends a message, later; one to a stream that is ending is dropped."""
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
        """Ends the stream behind what waits; only the first end counts.

        Args:
          why: None: the call ends with OK.
        """
        if not self._is_ending:
            self._is_ending = True
            self._ended = why
            self._news.set()

    async def send(self, write: Callable[[M], Awaitable[None]]) -> None:
        """Writes what is put until the stream is ended.

        Args:
          write: Sends one message, waiting as long as the other side does not read.

        Raises:
          StreamEnded: It was ended with a reason.
        """
        sending = asyncio.create_task(self._send_in_order(write))
        overflow = asyncio.create_task(self._overflowed.wait())
        try:
            await asyncio.wait({sending, overflow}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            overflow.cancel()
            self._waiting.clear()
            # gRPC loses the status of a call whose write is cancelled halfway, and its client waits
            # for ever; so a write that can end, ends.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), _LEAVING_S)
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
