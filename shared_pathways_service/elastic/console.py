"""Prints the lines that scripts expect to standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from shared_pathways_service.elastic.accounting.console_lines import lines_of
from shared_pathways_service.events import Event

__all__ = ["ConsoleLines"]


class ConsoleLines:
    """An event sink that prints lines for events that have some; it never fails.

    The default stream is the standard output at the time of printing.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        """Prints an event's lines together, and flushes them."""
        stream = self._stream or sys.stdout
        lines = lines_of(event)
        # A process may have been started without standard output.
        if not lines or stream is None:
            return
        text = "".join(f"{line}\n" for line in lines)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        # A ValueError: the stream is closed. Training must not fail for that.
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()
            except BrokenPipeError:
                _let_go(stream)


def _let_go(stream: TextIO) -> None:
    """Redirects a stream whose reader has closed it to nothing.

    Its buffer would fail again when Python exits, with exit code 120 for a successful training, and
    the program's own next `print` would end it.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno(), inheritable=True)
    finally:
        os.close(nothing)
