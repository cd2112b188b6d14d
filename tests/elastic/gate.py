"""Holds up calls until a check opens it."""

from __future__ import annotations

import threading

#: Nothing waits as long as that, unless it hangs.
DEADLINE_S = 240.0


class Gate:
    """Holds calls up until it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self.open = self._opened.set

    def wait(self) -> None:
        assert self._opened.wait(DEADLINE_S), "nobody opened it"
