"""Displays a connection in a notebook: a small table that is updated.

Only display functions import IPython, and only IPython calls them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.events import rfc3339
from shared_pathways_service.session.messages import Snapshot

__all__ = ["Board"]

#: Maximum number of displays that are updated; the latest ones count.
_DISPLAYS = 4


class Board:
    """The displays of one connection, whose state `render` returns as HTML."""

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render
        self._states: dict[int, tuple[str, str]] = {}
        self._handles: list[Any] = []
        self._shown = ""

    @property
    def since(self) -> Mapping[int, str]:
        """Start of each virtual slice's state, RFC 3339, if it was reported."""
        return {index: since for index, (_, since) in self._states.items()}

    def update(self, snapshot: Snapshot) -> None:
        """Records a new state, and updates the displays."""
        for view in snapshot.slices:
            state = "queued" if snapshot.position is not None else view.state
            known = self._states.get(view.index)
            if known is None or known[0] != state:
                self._states[view.index] = (state, rfc3339(time.time()))
        self._refresh()

    def display(self) -> None:
        """Displays the connection in the running cell."""
        from IPython.display import HTML, display  # noqa: PLC0415 - only ever called by IPython

        self._shown = self._render()
        handle = display(HTML(self._shown), display_id=True)  # type: ignore[no-untyped-call]
        if handle is not None:
            self._handles = [*self._handles, handle][-_DISPLAYS:]

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
