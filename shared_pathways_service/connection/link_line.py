"""Displays a lost link: one line of a terminal that is updated, or two plain lines elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TextIO

from shared_pathways_service.runtime.terminal import LastingStream
from shared_pathways_service.session.link_view import LinkView

__all__ = ["LinkLine"]

#: Seconds of a loss before a terminal shows it, and between two updates.
_SHOW_AFTER_S = 1.0
_UPDATE_INTERVAL_S = 0.5
_CLEAR = "\r\x1b[2K"
_COLUMNS = 80


class LinkLine:
    """The display of one connection's link.

    On a terminal a thread updates the line, because the program usually waits in JAX.

    Args:
      stream: Where to write.
      prefix: The beginning of each line.
      is_free: Whether the terminal's line may be used now.
    """

    def __init__(self, stream: TextIO | None, prefix: str, is_free: Callable[[], bool]) -> None:
        self._stream = LastingStream(stream)
        self._descriptor_of = stream
        self._prefix = prefix
        self._is_free = is_free
        self._lock = threading.RLock()
        self._link: LinkView | None = None
        self._is_drawn = False
        self._was_shown = False
        self._stopped = threading.Event()

    @property
    def lost_link(self) -> LinkView | None:
        """The link, while it is lost."""
        return self._link

    def update(self, link: LinkView | None, *, is_waiting: bool) -> None:
        """Processes the link's present state.

        Args:
          link: The link, if it was lost before.
          is_waiting: Whether the session waits for it.
        """
        with self._lock:
            before, self._link = self._link, link if is_waiting else None
            if self._link is not None and before is None:
                self._begin(self._link)
            elif self._link is None and before is not None:
                self._end(link)

    def print(self, text: str) -> None:
        """Prints another line, above the one that is updated."""
        with self._lock:
            self.clear()
            self._stream.print(f"{self._prefix}{text}")

    def clear(self) -> None:
        """Removes the line from the terminal, until its next update."""
        with self._lock:
            if self._is_drawn:
                self._is_drawn = False
                self._stream.write(_CLEAR)
                self._stream.flush()

    def _begin(self, link: LinkView) -> None:
        is_drawable = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._was_shown = not is_drawable
        if self._was_shown:
            self.print(link.text(time.time()))
            return
        self._stopped = threading.Event()
        threading.Thread(
            target=self._run, args=(self._stopped,), name="sps-link-line", daemon=True
        ).start()

    def _end(self, link: LinkView | None) -> None:
        self._stopped.set()
        self.clear()
        if self._was_shown and link is not None and not link.is_lost:
            self.print(link.text(time.time()))

    def _run(self, stopped: threading.Event) -> None:
        pause_s = _SHOW_AFTER_S
        while not stopped.wait(pause_s):
            pause_s = _UPDATE_INTERVAL_S
            with self._lock:
                if not stopped.is_set() and self._is_free():
                    self._draw()

    def _draw(self) -> None:
        if self._link is None:
            return
        self._was_shown = self._is_drawn = True
        text = f"{self._prefix}{self._link.text(time.time())}"
        # A line that is wrapped could not be removed.
        self._stream.write(f"{_CLEAR}{text[: self._columns() - 1]}")
        self._stream.flush()

    def _columns(self) -> int:
        try:
            assert self._descriptor_of is not None
            return os.get_terminal_size(self._descriptor_of.fileno()).columns or _COLUMNS
        except (OSError, ValueError):
            return _COLUMNS
