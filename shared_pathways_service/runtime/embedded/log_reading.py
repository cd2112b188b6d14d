"""Reads log files of the embedded service, and follows them until their writers have ended."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from shared_pathways_service.runtime.embedded.log_directory import tail_of

__all__ = ["LogFile", "Select", "Writer", "read_logs"]

#: Seconds between two polls of files that did not grow; change notification is not portable.
_POLL_S = 0.2
_CHUNK = 1 << 16


#: Returns the source and the text of a line to show; None: it is not to be shown.
Select: TypeAlias = Callable[[str], tuple[str, str] | None]


class Writer(Protocol):
    """The writer of a log."""

    def is_alive(self) -> bool:
        """Whether it may still write."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogFile:
    """A log file.

    Attributes:
      source: Name of the process, if there may be several logs; otherwise empty.
      writer: The writer of the log; None: it has ended.
      select: Selects lines; None: all are shown, with the log's source.
    """

    path: Path
    source: str = ""
    writer: Writer | None = None
    select: Select | None = None


def read_logs(
    logs: Sequence[LogFile], lines: int, show: Callable[[str, str], object], *, follow: bool
) -> None:
    """Shows logs.

    Args:
      logs: At least one log.
      lines: The number of last lines to show of each log.
      show: Called with the source of a line, and the line.
      follow: Whether to continue until all writers have ended.
    """
    with contextlib.ExitStack() as stack:
        readers = [_Reader(log, lines, stack) for log in logs]
        for reader in readers:
            for source, line in reader.last_lines:
                show(source, line)
        while follow:
            # Checked before reading, so that the last lines are read after the end.
            ended = not any(log.writer is not None and log.writer.is_alive() for log in logs)
            shown = False
            for reader in readers:
                for source, line in reader.new_lines():
                    show(source, line)
                    shown = True
            if ended and not shown:
                for reader in readers:
                    for source, line in reader.unfinished_line():
                        show(source, line)
                return
            if not shown:
                time.sleep(_POLL_S)


class _Reader:
    """Reads one log on from its last lines."""

    def __init__(self, log: LogFile, lines: int, stack: contextlib.ExitStack) -> None:
        self.log = log
        self._file: BinaryIO | None = None
        self._rest = b""
        with contextlib.suppress(FileNotFoundError):
            self._file = stack.enter_context(log.path.open("rb"))
            self._file.seek(0, 2)
        self.last_lines = self._last(lines) if lines else []

    def _last(self, lines: int) -> list[tuple[str, str]]:
        if self.log.select is None or self._file is None:
            return self._selected(tail_of(self.log.path, lines))
        end = self._file.tell()
        self._file.seek(0)
        *whole, self._rest = self._file.read(end).split(b"\n")
        return self._selected(line.decode(errors="replace") for line in whole)[-lines:]

    def _selected(self, lines: Iterable[str]) -> list[tuple[str, str]]:
        select = self.log.select
        if select is None:
            return [(self.log.source, line) for line in lines]
        return [found for line in lines if (found := select(line)) is not None]

    def new_lines(self) -> list[tuple[str, str]]:
        if self._file is None:
            return []
        # A log that grew too long is truncated in place. (One that was removed has an end, too.)
        with contextlib.suppress(FileNotFoundError):
            if self._file.tell() > self.log.path.stat().st_size:
                self._file.seek(0)
        *whole, self._rest = (self._rest + self._file.read(_CHUNK)).split(b"\n")
        return self._selected(line.decode(errors="replace") for line in whole)

    def unfinished_line(self) -> list[tuple[str, str]]:
        """Returns the text after the last newline, if there is any."""
        return self._selected([self._rest.decode(errors="replace")]) if self._rest else []
