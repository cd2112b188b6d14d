"""Timeouts that do not count time in which this process did not run.

If a process gets no processor time, or its event loop is blocked, everything that arrived meanwhile
looks late. So a timeout consists of several turns: each ends early if something has arrived, and a
long standstill uses up only one of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["wait_for", "wait_for_event"]

T = TypeVar("T")
#: Turns per timeout.
_TURNS = 10


async def wait_for(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Returns the result of a coroutine, cancelled after so many seconds of a running event loop.

    Raises:
      TimeoutError: The time has passed.
    """
    task = asyncio.ensure_future(work)
    try:
        for _ in range(_TURNS):
            done, _pending = await asyncio.wait({task}, timeout=timeout_s / _TURNS)
            if done:
                return task.result()
        raise TimeoutError
    finally:
        task.cancel()
        # (If it ended by itself, its error was raised already.)
        await asyncio.gather(task, return_exceptions=True)


def wait_for_event(event: threading.Event, timeout_s: float) -> bool:
    """Waits for an event of another thread for `timeout_s`; returns whether it was set."""
    return any(event.wait(timeout_s / _TURNS) for _ in range(_TURNS))
