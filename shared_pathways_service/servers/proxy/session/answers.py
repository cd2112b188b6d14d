"""Queues a session's answers to its client, and limits those that are not read yet.

If a client does not read its answers, no more requests are read: the thread that reads them waits.
Threads that settle an answer never wait, so no executor and no other session does.

The transports write the answers; this module has the counting that they share.
"""

from __future__ import annotations

import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.session.request_counts import RequestCounts

__all__ = ["Answer", "Answers", "QueuedAnswers"]

#: Bytes for which a request counts as one, and above which an answer's bytes are counted: the
#: number of smaller ones limits them.
_UNIT_SHIFT = 16
_LARGE = 4096


class Answer(NamedTuple):
    """One serialised answer that waits to be written; `counted` are its bytes if it is large."""

    message: bytes
    units: int
    counted: int


class Answers(ABC):
    """The answers of one session.

    Three kinds of threads use this: the one that reads requests (`admit`), the one that writes
    answers (`_written`), and any that settle one (`sender`). The first two may be the same; they
    count in integers of their own, so that no request costs a lock.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most = limits.requests
        self._most_unread = limits.unread_bytes // 2
        self.counts = RequestCounts()
        # Units of requests that were read, and of those whose answers were written.
        self._read = 0
        self._done = 0
        # Bytes of large answers that are not yet written.
        self._lock = threading.Lock()
        self._large = 0
        # The reader waits until at most so many units are open.
        self._waits = False
        self._wake_at = 0

    @property
    def open(self) -> int:
        """The requests that were read and whose answers are not written."""
        return self._read - self._done

    @property
    def held_back(self) -> bool:
        """Whether no more requests are read."""
        return self._waits

    # ---- the thread that reads

    def admit(self, nbytes: int) -> int:
        """Waits until there is room for a request, or the session ends; returns its units."""
        units = 1 + (nbytes >> _UNIT_SHIFT)
        if not self._is_free(units):
            # Woken with some room, not for each answer that is written.
            self._wake_at = max(0, min(self._most - units, self._most - self._most // 4))
            self._wait_for_room()
            self._waits = False
        self._read += units
        return units

    def _is_free(self, units: int) -> bool:
        """Whether a request of so many units is admitted at once."""
        return self._read - self._done + units <= self._most and self._large <= self._most_unread

    def sender(self, units: int) -> Callable[[bytes], None]:
        """Returns the function that sends the answer to a request of so many units."""
        return self._send if units == 1 else functools.partial(self._send, units=units)

    @abstractmethod
    def _wait_for_room(self) -> None:
        """Sets `_waits`, and returns once `_has_room`, or no more answers are sent."""

    def _has_room(self) -> bool:
        open_units = self._read - self._done
        return open_units == 0 or (open_units <= self._wake_at and self._large <= self._most_unread)

    # ---- any thread

    def _send(self, message: bytes, units: int = 1) -> None:
        """Sends an answer, unless too many large ones are unread: then a small one must follow."""
        nbytes = len(message)
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
        self._put(Answer(message, units, counted))

    @abstractmethod
    def _put(self, answer: Answer) -> None:
        """Queues an answer to be written."""

    # ---- the thread that writes

    def _written(self, answer: Answer) -> None:
        """Counts an answer as written."""
        self._done += answer.units
        self.counts.answer_bytes += len(answer.message)
        if answer.counted:
            with self._lock:
                self._large -= answer.counted


class QueuedAnswers(Answers):
    """Answers that a thread takes one by one, each after the one before is written."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._queue: queue.SimpleQueue[Answer | StatusError | None] = queue.SimpleQueue()
        self._being_written: Answer | None = None
        self._room = threading.Event()
        self._closed = False

    def _wait_for_room(self) -> None:
        while True:
            self._room.clear()
            self._waits = True
            # Checked after `_waits` is set: either the writer sees that this waits, or this sees
            # the write.
            if self._closed or self._has_room():
                return
            self._room.wait()

    def _put(self, answer: Answer) -> None:
        self._queue.put(answer)

    def end(self, error: StatusError | None) -> None:
        """Ends the answers after the queued ones, with an error if there is one."""
        self._queue.put(error)

    def close(self) -> None:
        """Lets the reader continue: no more answers are sent."""
        self._closed = True
        self._room.set()

    def next(self) -> bytes | StatusError | None:
        """Returns the next answer once the one before is written; an error or None at the end."""
        if self._being_written is not None:
            self._written(self._being_written)
            self._being_written = None
        if self._waits and self._has_room():
            self._room.set()
        found = self._queue.get()
        if isinstance(found, Answer):
            self._being_written = found
            return found.message
        return found
