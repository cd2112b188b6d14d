"""What is shown to people, which is no reason to fail where nobody can see it any more."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LastingStream", "lasting_console"]


class LastingStream:
    """Writes to a stream, and drops what it does not take: its terminal or its reader is gone.

    Who writes goes on; what is undone then is undone to its end.

    Args:
      stream: None: a program without a terminal may have no standard error at all.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """Of the stream; as `TextIO.encoding`."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes as `TextIO.write`, but never fails; returns the length of the text."""
        if self._stream is not None:
            # (ValueError: it was closed.)
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes as `TextIO.flush`, but never fails."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def print(self, line: str) -> None:
        """Writes a line, which is there at once."""
        self.write(f"{line}\n")
        self.flush()

    def isatty(self) -> bool:
        """Returns whether it is a terminal, which may be gone."""
        if self._stream is None:
            return False
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False


def lasting_console(stream: TextIO | None) -> Console:
    """Returns a console of rich that draws on a stream for as long as that takes it."""
    from rich.console import Console  # noqa: PLC0415 - slow to import

    # What rich itself has put in front of a stream would draw what is drawn again.
    drawn_on = getattr(stream, "rich_proxied_file", stream)
    return Console(file=cast("TextIO", LastingStream(drawn_on)))
