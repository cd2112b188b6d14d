"""Terminals that are closed while somebody writes to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TextIO

import pytest

__all__ = ["terminal"]


@contextlib.contextmanager
def terminal() -> Iterator[tuple[TextIO, Callable[[], None]]]:
    """Yields the stream of a terminal, and a function that closes the terminal."""
    ours, theirs = os.openpty()
    stream = os.fdopen(theirs, "w", buffering=1)
    with contextlib.ExitStack() as undo:
        # What could not be written is still there to be flushed.
        undo.enter_context(contextlib.suppress(OSError))
        undo.callback(stream.close)
        master = undo.enter_context(os.fdopen(ours, "rb", buffering=0))

        def close() -> None:
            master.close()
            with pytest.raises(OSError, match="Input/output"):
                stream.write("as it is with a terminal that was closed\n")

        yield stream, close
