"""What the tests of attacks share: a server looked at from outside, before, amid and after."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

from tests.processes import DEADLINE_S

__all__ = ["Watched", "wait_until"]

#: Connections and pipes that a server may have made for itself meanwhile.
_SOME_DESCRIPTORS = 8


class Watched:
    """A server's process, and what it held before it was attacked."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._resident = self._process.memory_info().rss
        self._descriptors = self._process.num_fds()

    @property
    def grown(self) -> int:
        """Bytes of memory that it has now more than before."""
        return int(self._process.memory_info().rss) - self._resident

    @property
    def descriptors(self) -> int:
        """How many it has now."""
        return int(self._process.num_fds())

    def wait_until_descriptors_are_back(self) -> None:
        """Waits until it has as many as before."""
        wait_until(
            lambda: self.descriptors <= self._descriptors + _SOME_DESCRIPTORS,
            lambda: f"{self._descriptors} descriptors before, {self.descriptors} now",
        )


def wait_until(condition: Callable[[], bool], text: Callable[[], str] = str) -> None:
    """Waits for what nothing tells of."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, text()
        time.sleep(0.01)
