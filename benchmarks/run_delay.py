"""How long processes waited for a processor, to distinguish a busy machine from slow code."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

__all__ = ["RunDelay"]


class RunDelay:
    """The waits of all threads of some processes."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._tasks = [Path(f"/proc/{pid}/task") for pid in pids]

    def read(self) -> float:
        """Returns the sum in seconds since the processes' start; 0 where the system has none."""
        waited = 0
        for tasks in self._tasks:
            for task in tasks.iterdir():
                with contextlib.suppress(OSError):
                    waited += int((task / "schedstat").read_text().split()[1])
        return waited / 1e9
