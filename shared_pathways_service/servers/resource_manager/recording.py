"""Records the core's inputs and decisions: in memory up to a limit, or in a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError, PreflightError
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.messages import ResourceManagerEvent
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.scheduling.event_log import epoch_line, event_line
from shared_pathways_service.version import __version__

__all__ = ["Recording"]

#: Events that are recorded in memory, without a file.
_IN_MEMORY = 20_000
#: Lines, or bytes of the file, per piece of an export.
_LINES = 200
_BYTES = 1 << 18


class Recording:
    """The inputs of the core, and its decisions.

    Args:
      path: The file to append to; empty: memory, up to a limited number of events.

    Raises:
      InvalidRequestError: The file cannot be written.
    """

    def __init__(self, path: str = "") -> None:
        self._path = path
        self._fd: int | None = None
        self._events: list[tuple[ResourceManagerEvent, float, tuple[Decision, ...]]] = []
        self._epoch = ""
        self._is_complete = True
        if path:
            try:
                self._fd = _appended(Path(path))
            except OSError as error:
                expected = f"a file that can be written ({error.strerror})"
                raise InvalidRequestError("--record_events", path, expected) from error

    def begin(self, config: RmConfig, restored: Restored, now: float) -> None:
        """Begins an epoch; call it before adding the epoch's events."""
        self._epoch = epoch_line(config, restored, now, __version__)
        if self._fd is not None:
            self._write(self._epoch)

    def add(self, event: ResourceManagerEvent, now: float, decisions: tuple[Decision, ...]) -> None:
        """Adds an event and the decisions that it led to."""
        if self._path:
            if self._fd is not None:
                self._write(event_line(event, now, decisions))
        elif len(self._events) < _IN_MEMORY:
            self._events.append((event, now, decisions))
        elif self._is_complete:
            self._is_complete = False
            self._events.clear()

    def close(self) -> None:
        """Closes the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    async def export(self) -> AsyncIterator[str]:
        """Yields the log, in pieces of whole lines, each with its newline.

        Raises:
          PreflightError: There were too many events for the memory, or the file is full.
        """
        if self._path:
            async for piece in self._export_file():
                yield piece
            return
        if not self._is_complete:
            raise PreflightError(
                f"more than {_IN_MEMORY} events have gone in, and no file keeps them",
                hint="start the resource manager with --record_events=FILE",
            )
        yield self._epoch + "\n"
        events = self._events[:]
        for start in range(0, len(events), _LINES):
            lines = [event_line(*one) for one in events[start : start + _LINES]]
            yield "".join(f"{line}\n" for line in lines)
            await asyncio.sleep(0)

    async def _export_file(self) -> AsyncIterator[str]:
        if not self._is_complete or self._fd is None:
            raise PreflightError(f"{self._path} could not be written to the end")
        # Read the file that is written, even if it was renamed or closed meanwhile.
        fd = os.dup(self._fd)
        try:
            end, at, rest = os.fstat(fd).st_size, 0, b""
            # (Reading a local file that was just written is served from the page cache.)
            while at < end and (data := os.pread(fd, min(end - at, _BYTES), at)):
                at += len(data)
                whole, newline, rest = (rest + data).rpartition(b"\n")
                if newline:
                    yield (whole + newline).decode()
                await asyncio.sleep(0)
        finally:
            os.close(fd)

    def _write(self, line: str) -> None:
        assert self._fd is not None
        data = f"{line}\n".encode()
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            # The service matters more than its recording.
            glog("E", f"the events are recorded no more: {self._path}: {error}")
            self._is_complete = False
            self.close()


def _appended(path: Path) -> int:
    """Opens a file to append; terminates an incomplete line that a kill left at its end."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    size = os.fstat(fd).st_size
    if size and os.pread(fd, 1, size - 1) != b"\n":
        os.write(fd, b"\n")
    return fd
