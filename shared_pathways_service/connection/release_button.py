"""A button in a notebook that releases a connection, where ipywidgets is installed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.session.messages import Phase, Snapshot

__all__ = ["ReleaseButton"]


class ReleaseButton:
    """The buttons of one connection, which are there while it serves.

    A front end without ipywidgets displays nothing in their place.

    Args:
      close: Releases the connection.
    """

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close
        self._handle: Any = None
        self._button: Any = None
        self._is_serving = False

    def display(self) -> None:
        """Makes room for the button in the running cell, below the table."""
        try:
            import ipywidgets  # noqa: F401, PLC0415 - optional, and slow to import
        except ImportError:
            return
        from IPython.display import HTML, display  # noqa: PLC0415 - only ever called by IPython

        self._remove()
        self._handle = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call]
        if self._is_serving:
            self._show()

    def update(self, snapshot: Snapshot) -> None:
        """Shows or removes the button when the connection begins or ends to serve."""
        is_serving = snapshot.phase is Phase.SERVE
        if is_serving == self._is_serving:
            return
        self._is_serving = is_serving
        if self._handle is not None:
            # A closed notebook must not interrupt the processing of events.
            with contextlib.suppress(Exception):
                (self._show if is_serving else self._remove)()

    def _show(self) -> None:
        import ipywidgets  # noqa: PLC0415 - it was imported for the display

        self._button = ipywidgets.Button(
            description="Release", tooltip="Release the slices of this connection"
        )
        self._button.on_click(self._release)
        self._handle.update(self._button)

    def _release(self, button: Any) -> None:
        button.disabled = True
        # The table shows how the connection ended.
        with contextlib.suppress(SharedPathwaysError):
            self._close()

    def _remove(self) -> None:
        button, self._button = self._button, None
        if button is None:
            return
        from IPython.display import HTML  # noqa: PLC0415 - it displayed the button

        # (The notebook's file would show a widget that cannot be restored.)
        self._handle.update(HTML(""))  # type: ignore[no-untyped-call]
        button.close()
