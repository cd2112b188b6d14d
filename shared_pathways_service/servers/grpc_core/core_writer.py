"""Sends the messages of a stream one at a time, each made once the one before is written."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["CoreWriter"]


class CoreWriter:
    """What waits at the same time can so form one message. Thread-safe.

    A message is sent on the thread that has it, unless the one before is still being written.

    Args:
      next_message: Returns the next message, None if there is none; called by one thread at a time.
      send: Begins to send a message; `sent` is called once that has ended. (If the call has ended,
        it is not, and nothing is sent any more.)
      on_error: Ends the call: a message could not be made or sent, and would be missing.
    """

    def __init__(
        self,
        next_message: Callable[[], bytes | None],
        send: Callable[[bytes], object],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._next_message = next_message
        self._send = send
        self._on_error = on_error
        # Held while a message is being written.
        self._writing = threading.Lock()
        self._is_wanted = False

    def wake(self) -> None:
        """Sends messages, now or once the one before is written; does not wait for that."""
        self._is_wanted = True
        # (Whoever is writing looks at it again afterwards.)
        while self._is_wanted and self._writing.acquire(blocking=False):
            self._is_wanted = False
            try:
                message = self._next_message()
                if message is not None:
                    self._send(message)
                    return
            except BaseException as error:
                self._on_error(error)
                raise
            self._writing.release()

    def sent(self) -> None:
        """Notes that a message is written, or never will be; sends the next one."""
        self._writing.release()
        self.wake()
