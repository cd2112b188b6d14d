"""A session's answers on their way to its client, and what is held back until they are read.

The client that does not read its answers is asked no more: the thread that reads its requests
waits. Nobody who settles an answer ever waits, so no executor and no other session does.
"""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable

from shared_pathways_service.servers.proxy.counters import RequestCounts
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.status import Code, StatusError

__all__ = ["Answers"]

#: Bytes for which a request counts as one, and those above which an answer's are counted: all
#: smaller ones are few enough by their number.
_UNIT_SHIFT = 16
_LARGE = 4096


class Answers:
    """The answers of one session.

    Three kinds of threads meet here: the one that reads requests (`admit`), the one that writes
    answers (`next`), and any that settle one (`sender`). The first two count in integers of their
    own, so that no request costs a lock.

    Args:
      limits: Of the proxy.

    Attributes:
      counts: Of the session.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most = limits.requests
        self._most_unread = limits.unread_bytes // 2
        self.counts = RequestCounts()
        self._queue: queue.SimpleQueue[bytes | tuple[bytes, int, int] | StatusError | None] = (
            queue.SimpleQueue()
        )
        # Requests in units: read, and written the answers of.
        self._read = 0
        self._written = 0
        self._being_written = (0, 0)
        # Bytes of large answers that are not yet written.
        self._lock = threading.Lock()
        self._large = 0
        # The reader waits; looked at by the writer only where it does.
        self._waits = False
        self._wake_at = 0
        self._room = threading.Event()
        self._closed = False

    @property
    def open(self) -> int:
        """Requests that are read and whose answers are not written."""
        return self._read - self._written

    @property
    def held_back(self) -> bool:
        """Whether no more requests are read."""
        return self._waits

    # ---- the thread that reads

    def admit(self, nbytes: int) -> int:
        """Waits until there is room for one more request, or the session ends.

        Args:
          nbytes: Of the request.

        Returns:
          For how many requests it counts.
        """
        units = 1 + (nbytes >> _UNIT_SHIFT)
        if self._read - self._written + units > self._most or self._large > self._most_unread:
            self._wait(units)
        self._read += units
        return units

    def sender(self, units: int) -> Callable[[bytes], None]:
        """Returns what sends the one answer to a request that counts for so many."""
        return self._put if units == 1 else functools.partial(self._put, units=units)

    def _wait(self, units: int) -> None:
        # Woken with some room, not for each answer that is written.
        self._wake_at = max(0, min(self._most - units, self._most - self._most // 4))
        while True:
            self._room.clear()
            self._waits = True
            # Looked at after it was said: the writer sees that this waits, or this what it wrote.
            if self._closed or self._has_room():
                break
            self._room.wait()
        self._waits = False

    def _has_room(self) -> bool:
        open_units = self._read - self._written
        return open_units == 0 or (open_units <= self._wake_at and self._large <= self._most_unread)

    # ---- any thread

    def _put(self, answer: bytes, units: int = 1) -> None:
        """Queues an answer.

        Raises:
          StatusError: RESOURCE_EXHAUSTED: it is large, and too many large ones wait to be read.
            Another one, small, must take its place.
        """
        nbytes = len(answer)
        if units == 1 and nbytes <= _LARGE:
            self._queue.put(answer)
            return
        counted = nbytes if nbytes > _LARGE else 0
        if counted:
            with self._lock:
                held = self._large
                if held and held + nbytes > self._limits.unread_bytes:
                    raise StatusError(
                        Code.RESOURCE_EXHAUSTED,
                        f"an answer needs {nbytes} bytes; the limit of answers that the client has "
                        "not read yet is "
                        f"{self._limits.unread_bytes} bytes, of which {held} are held",
                    )
                self._large += nbytes
        self._queue.put((answer, units, counted))

    def end(self, error: StatusError | None) -> None:
        """Ends the answers, with an error if there is one, behind those that are queued."""
        self._queue.put(error)

    def close(self) -> None:
        """Lets the reader go on: nothing is sent any more."""
        self._closed = True
        self._room.set()

    # ---- the thread that writes

    def next(self) -> bytes | StatusError | None:
        """Returns the next answer once the one before is written; an error or None at the end."""
        units, nbytes = self._being_written
        self._written += units
        if nbytes:
            with self._lock:
                self._large -= nbytes
        if self._waits and self._has_room():
            self._room.set()
        found = self._queue.get()
        if isinstance(found, bytes):
            self._being_written = _ONE
            self.counts.answer_bytes += len(found)
            return found
        if isinstance(found, tuple):
            answer, units, nbytes = found
            self._being_written = (units, nbytes)
            self.counts.answer_bytes += len(answer)
            return answer
        return found


_ONE = (1, 0)
