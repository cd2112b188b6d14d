"""What is sent to a peer over one stream: items in their order, and bytes of large arrays.

Items that wait at the same time form one message. Bytes are sent in small messages of their own
while no item waits, so an item waits for no more than the bytes that are on their way already.
Several arrays take turns. An item that belongs to an array's bytes is sent behind them, and so
after items that were put later: its sender must put nothing that depends on it before it was
answered.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from shared_pathways_service.protocol.chunks import Chunk

__all__ = ["SendQueue"]

T = TypeVar("T")

#: The most bytes of a message, unless one item has more. (A message can have 2 GiB.)
_MESSAGE_BYTES = 64 << 20


class _Mark:
    """Is queued, or returned, in place of an item."""


#: Bytes wait.
_BYTES = _Mark()
#: No item waits.
_NOTHING = _Mark()


class SendQueue(Generic[T]):
    """Items and bytes for one stream, which one thread at a time reads. Putting is thread-safe.

    Args:
      most: The most items of a message.
      size_of: Returns the bytes of an item.
      patience_s: The seconds for which `messages` holds back items that were put patiently.
    """

    def __init__(self, most: int, size_of: Callable[[T], int], *, patience_s: float = 0.0) -> None:
        self._most = most
        self._size_of = size_of
        self._patience_s = patience_s
        # Set when anything is queued that does not wait for more.
        self._is_urgent = threading.Event()
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # An item that was taken from the queue, and is the first of the next message.
        self._held: Any = _NOTHING
        self._sending: deque[tuple[int, Iterator[memoryview], T]] = deque()
        self._is_ended = False
        self._is_closed = False

    def put(self, item: T) -> None:
        """Sends an item. Finalizers may call it if there is no patience: it does not block."""
        if not self._is_closed:
            self._items.put(item)
            if self._patience_s:
                self._hurry()

    def put_patiently(self, item: T) -> None:
        """Sends an item with the next one that is not put patiently, or after the patience."""
        if not self._is_closed:
            self._items.put(item)

    def put_behind(self, number: int, data: Iterator[memoryview], item: T) -> None:
        """Sends bytes as chunks of this number, and then an item."""
        if not self._is_closed:
            self._sending.append((number, data, item))
            self._items.put(_BYTES)
            self._hurry()

    def end(self) -> None:
        """Ends the stream after the items so far; bytes that wait are not sent."""
        self._items.put(None)
        self._hurry()

    def close(self) -> None:
        """Ends the stream at once; drops what waits, and what is put later."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._drop()
        self.end()

    def messages(self) -> Iterator[list[T] | Chunk]:
        """Yields the items of each message, or a chunk; waits for them."""
        while not self._is_ended:
            message = self.next_message()
            if message is not None:
                yield message
            elif not self._is_ended:
                self._held = self._items.get()
                if self._patience_s:
                    self._is_urgent.wait(self._patience_s)
                    self._is_urgent.clear()

    def next_message(self) -> list[T] | Chunk | None:
        """Returns the items of the next message, or a chunk; None if nothing waits."""
        batch: list[T] = []
        size = 0
        while len(batch) < self._most and (item := self._next()) is not _NOTHING:
            if item is None:
                self._is_ended = True
                self._sending.clear()
                break
            if item is _BYTES:
                continue
            nbytes = self._size_of(item)
            if batch and size + nbytes > _MESSAGE_BYTES:
                self._held = item
                break
            size += nbytes
            batch.append(item)
        message = batch or self._next_chunk()
        if self._is_closed:
            self._drop()
        return message

    def _hurry(self) -> None:
        # After an item was queued, so that it is found once the event is set: at worst the next
        # item does not wait.
        self._is_urgent.set()

    def _next(self) -> Any:
        if self._held is not _NOTHING:
            item, self._held = self._held, _NOTHING
            return item
        # (Checking first is cheaper than the exception of an empty queue. Only `close` takes items
        # as well.)
        if self._is_ended or self._items.empty():
            return _NOTHING
        try:
            return self._items.get_nowait()
        except queue.Empty:
            return _NOTHING

    def _next_chunk(self) -> list[T] | Chunk | None:
        try:
            number, data, item = self._sending.popleft()
        except IndexError:
            return None
        chunk = next(data, None)
        if chunk is None:
            return [item]
        self._sending.append((number, data, item))
        return Chunk(number, chunk)

    def _drop(self) -> None:
        self._held = _NOTHING
        self._sending.clear()
