"""A connection in a notebook: a small table that goes with what happens.

IPython is imported by who displays something, which is IPython itself; where there is none, nothing
here is ever called but `hear`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.events import rfc3339
from shared_pathways_service.session.messages import Snapshot

__all__ = ["Board"]

#: Displays that go with what happens: of many, the last.
_DISPLAYS = 4


class Board:
    """What notebooks show of one connection.

    Args:
      render: Returns the connection as HTML, as it is now.
    """

    def __init__(self, render: Callable[[], str]) -> None:
        self._render = render
        self._states: dict[int, tuple[str, str]] = {}
        self._handles: list[Any] = []
        self._shown = ""

    @property
    def since(self) -> Mapping[int, str]:
        """Since when each virtual slice is in its state, RFC 3339; only what was heard of."""
        return {index: since for index, (_, since) in self._states.items()}

    def hear(self, snapshot: Snapshot) -> None:
        """Takes note of a new state, and shows it where the connection was displayed."""
        for view in snapshot.slices:
            state = "queued" if snapshot.position is not None else view.state
            known = self._states.get(view.index)
            if known is None or known[0] != state:
                self._states[view.index] = (state, rfc3339(time.time()))
        self._refresh()

    def display(self) -> None:
        """Displays the connection in the cell that runs."""
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
            # A notebook that is gone is no reason to miss what happens.
            with contextlib.suppress(Exception):
                handle.update(HTML(text))  # type: ignore[no-untyped-call]
