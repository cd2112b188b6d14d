"""Passes on what an executor writes, as tagged lines of this worker's log."""

from __future__ import annotations

import contextlib
import os

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.runtime.executor_lines import ExecutorTag, message_of
from shared_pathways_service.runtime.glog import is_json, write_text

__all__ = ["ExecutorOutput"]

_CHUNK = 1 << 16
_CHUNKS_AT_END = 16
#: The most bytes of a line; a longer one becomes several.
_LINE_BYTES = 3000


class ExecutorOutput:
    """The output of one executor; use it on one thread.

    Attributes:
      pipe: Readable when there is more, or at its end; None after its end.
      write_end: The file descriptor for the executor's output, which `started` closes here.
    """

    def __init__(self, tag: ExecutorTag) -> None:
        self._tag = tag
        self._rest = b""
        self._last_line = b""
        self.pipe: int | None
        self.pipe, self.write_end = os.pipe()
        os.set_blocking(self.pipe, False)

    @property
    def last_text(self) -> str:
        """The message of its last line that is not empty, cut; empty if there is none."""
        return fitting_text(message_of(self._last_line.decode(errors="replace").strip())).strip()

    def started(self) -> None:
        """Leaves the write end to the executor."""
        os.close(self.write_end)

    def pass_on(self) -> bool:
        """Writes the lines that have come; returns whether there may be more."""
        if self.pipe is None:
            return False
        try:
            data = os.read(self.pipe, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._end()
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) >= _LINE_BYTES:
            lines.append(self._rest[:_LINE_BYTES])
            self._rest = self._rest[_LINE_BYTES:]
        for line in lines:
            self._write_own(line)
        return True

    def say(self, text: str) -> None:
        """Writes a line of the worker's about the executor."""
        self._write(text.encode())

    def close(self) -> None:
        """Writes what is left, once the executor has ended; others may hold its pipe."""
        for _ in range(_CHUNKS_AT_END):
            if not self.pass_on():
                break
        self._end()

    def _end(self) -> None:
        if self.pipe is not None:
            if self._rest:
                self._write_own(self._rest)
            with contextlib.suppress(OSError):
                os.close(self.pipe)
            self.pipe = None

    def _write_own(self, line: bytes) -> None:
        if line.strip():
            self._last_line = line
        self._write(line)

    def _write(self, line: bytes) -> None:
        for start in range(0, max(1, len(line)), _LINE_BYTES):
            text = line[start : start + _LINE_BYTES].decode(errors="replace")
            write_text(f"{self._tag.line(text, is_json=is_json())}\n")
