"""Where the executors of an operation over several placements meet."""

from __future__ import annotations

import threading

__all__ = ["Meeting"]


class Meeting:
    """Has the last of `size` executors run the work, and the others wait for its end."""

    __slots__ = ("_ended", "_lock", "_missing")

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        self._missing = size
        self._ended = threading.Event()

    def arrive(self) -> bool:
        """Returns True to the last executor; to the others False, once the work has ended."""
        with self._lock:
            self._missing -= 1
            is_last = not self._missing
        if not is_last:
            # Set when the operation settles: by its end, or at once by the loss of any slice.
            self._ended.wait()
        return is_last

    def end(self) -> None:
        """Lets the executors that wait go on."""
        self._ended.set()
