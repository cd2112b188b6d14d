"""Displays a connection in a notebook: a small table that is updated, and a button to release it.

Only display functions import IPython and ipywidgets, and only IPython calls them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.connection.release_button import ReleaseButton
from shared_pathways_service.connection.views import Wait
from shared_pathways_service.events import rfc3339
from shared_pathways_service.session.messages import RISING, Snapshot

__all__ = ["Board"]

#: Maximum number of displays that are updated; the latest ones count.
_DISPLAYS = 4
#: Seconds between two updates of the time that a wait has lasted.
_UPDATE_INTERVAL_S = 1.0
_RELEASE = "%sps release"


class Board:
    """The displays of one connection.

    Args:
      render: Returns its state as HTML.
      close: Releases it.
    """

    def __init__(self, render: Callable[[], str], close: Callable[[], object]) -> None:
        self._render = render
        self._lock = threading.RLock()
        self._states: dict[int, tuple[str, str]] = {}
        self._handles: list[Any] = []
        self._shown = ""
        self._cell: object = None
        self._began: float | None = None
        self._positions = 0
        self._updated = 0.0
        self._button = ReleaseButton(close)
        self.wait: Wait | None = None
        self.release = ""

    @property
    def since(self) -> Mapping[int, str]:
        """Start of each virtual slice's state, RFC 3339, if it was reported."""
        return {index: since for index, (_, since) in self._states.items()}

    @property
    def is_displayed(self) -> bool:
        """Whether the connection was displayed."""
        return bool(self._handles)

    def update(self, snapshot: Snapshot) -> None:
        """Records a new state, and updates the displays."""
        with self._lock:
            for view in snapshot.slices:
                state = "queued" if snapshot.position is not None else view.state
                known = self._states.get(view.index)
                if known is None or known[0] != state:
                    self._states[view.index] = (state, rfc3339(time.time()))
            self._follow_wait(snapshot)
            self._refresh()
            self._button.update(snapshot)

    def tick(self) -> None:
        """Updates the time that the wait has lasted; the waiting code calls it often."""
        with self._lock:
            now = time.monotonic()
            if self.wait is not None and self._began and now - self._updated >= _UPDATE_INTERVAL_S:
                self._updated = now
                self.wait = Wait(seconds=now - self._began, positions=self._positions)
                self._refresh()

    def display(self) -> None:
        """Displays the connection in the running cell, once; with ``%sps`` also its button."""
        from IPython.core.getipython import get_ipython  # noqa: PLC0415 - only called by IPython
        from IPython.display import HTML, display  # noqa: PLC0415

        shell: Any = get_ipython()
        has_kernel = getattr(shell, "kernel", None) is not None
        cell = shell.get_parent()["header"]["msg_id"] if has_kernel else None
        if cell is not None and cell == self._cell:
            return
        self._cell = cell
        has_magic = shell is not None and shell.find_line_magic("sps") is not None
        self.release = _RELEASE if has_magic else ""
        with self._lock:
            self._shown = self._render()
            handle = display(HTML(self._shown), display_id=True)  # type: ignore[no-untyped-call]
            if handle is not None:
                self._handles = [*self._handles, handle][-_DISPLAYS:]
            if has_kernel and has_magic:
                self._button.display()

    def _follow_wait(self, snapshot: Snapshot) -> None:
        is_rising = snapshot.phase in RISING
        if not is_rising and snapshot.position is None:
            self._began, self._positions, self.wait = None, 0, None
            return
        self._began = (self._began or time.monotonic()) if is_rising else None
        self._positions = max(self._positions, snapshot.position or 0)
        seconds = None if self._began is None else time.monotonic() - self._began
        self.wait = Wait(seconds=seconds, positions=self._positions)

    def _refresh(self) -> None:
        if not self._handles:
            return
        text = self._render()
        if text == self._shown:
            return
        self._shown = text
        from IPython.display import HTML  # noqa: PLC0415 - it displayed this before

        for handle in self._handles:
            # A closed notebook must not interrupt the processing of events.
            with contextlib.suppress(Exception):
                handle.update(HTML(text))  # type: ignore[no-untyped-call]
