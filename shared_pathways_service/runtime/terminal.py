"""Writes to terminals and pipes without failing when the terminal or reader is gone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LastingStream", "lasting_console"]


class LastingStream:
    """Writes to a stream, or nowhere if it is None, and ignores a closed terminal or reader.

    The writing program continues, and completes its clean-up.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """The stream's encoding, as `TextIO.encoding`."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Writes like `TextIO.write`, but never fails; returns the length of the text."""
        if self._stream is not None:
            # (ValueError: the stream was closed. LookupError: its encoding is unknown.)
            with contextlib.suppress(OSError, ValueError, LookupError):
                try:
                    self._stream.write(text)
                except UnicodeEncodeError:
                    escaped = text.encode(self.encoding, "backslashreplace")
                    self._stream.write(escaped.decode(self.encoding))
        return len(text)

    def flush(self) -> None:
        """Flushes like `TextIO.flush`, but never fails."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.flush()

    def print(self, line: str) -> None:
        """Writes a line and flushes it."""
        self.write(f"{line}\n")
        self.flush()

    def isatty(self) -> bool:
        """Returns whether the stream is a terminal, which may be closed."""
        if self._stream is None:
            return False
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False


def lasting_console(stream: TextIO | None) -> Console:
    """Returns a console of rich that draws on a stream as long as it is open."""
    from rich.console import Console  # noqa: PLC0415 - slow to import

    # The streams that rich itself puts in front would draw twice.
    drawn_on = getattr(stream, "rich_proxied_file", stream)
    return Console(file=cast("TextIO", LastingStream(drawn_on)))
