"""The lines that scripts look for, on standard output."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from shared_pathways_service.elastic.accounting.console_lines import lines_of
from shared_pathways_service.events import Event

__all__ = ["ConsoleLines"]


class ConsoleLines:
    """A sink of events that prints those which have lines; it never fails.

    Args:
      stream: Where to; None: standard output, whatever that is when a line is printed.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream

    def __call__(self, event: Event) -> None:
        """Prints the event's lines at once, and together."""
        stream = self._stream or sys.stdout
        lines = lines_of(event)
        # There is no standard output in a process that was started without one.
        if not lines or stream is None:
            return
        text = "".join(f"{line}\n" for line in lines)
        encoding = getattr(stream, "encoding", None) or "utf-8"
        # A ValueError: the stream is closed. Who cannot be told is no reason not to train.
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
                stream.flush()
            except BrokenPipeError:
                _let_go(stream)


def _let_go(stream: TextIO) -> None:
    """Points a stream whose reader has gone at nothing.

    What it still holds would fail again as Python ends, which makes exit code 120 of a training
    that was done; and the program's own next `print` would end it.
    """
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, stream.fileno(), inheritable=True)
    finally:
        os.close(nothing)
