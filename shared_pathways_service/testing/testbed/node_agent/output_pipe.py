"""A pipe for the output of a process that may leave it open to its descendants."""

from __future__ import annotations

import asyncio
import os

__all__ = ["OutputPipe"]


class OutputPipe:
    """A pipe that is read in the event loop.

    (With a pipe of asyncio's own, `Process.wait` waits until no descendant holds it open, in some
    releases of Python.)

    Args:
      limit: The longest line in bytes.
    """

    def __init__(self, limit: int) -> None:
        self.reader = asyncio.StreamReader(limit)
        self.writing_end: int | None = None
        self._transport: asyncio.ReadTransport | None = None

    async def open(self) -> None:
        """Opens both ends: `reader`, and the file descriptor `writing_end`."""
        reading_end, self.writing_end = os.pipe()
        file = os.fdopen(reading_end, "rb", buffering=0)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.reader), file
        )

    def close_writing_end(self) -> None:
        """Leaves the writing end to the process: the output ends when it closes it."""
        if self.writing_end is not None:
            os.close(self.writing_end)
            self.writing_end = None

    def close(self) -> None:
        """Closes both ends here."""
        self.close_writing_end()
        if self._transport is not None:
            self._transport.close()
