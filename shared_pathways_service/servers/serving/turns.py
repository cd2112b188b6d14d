"""Timeouts for what clients send, which do not count time in which this process stood still.

A process that gets no processor time, or whose event loop is held up, finds everything late that
came meanwhile. So a timeout is waited for in turns: each ends early if something has come, and a
long standstill is over with one of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["wait_for", "wait_for_event"]

T = TypeVar("T")
#: Turns of one timeout.
_TURNS = 10


async def wait_for(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Returns what a coroutine returns.

    Args:
      work: Is cancelled when the time is over.
      timeout_s: Seconds in which the event loop runs.

    Raises:
      TimeoutError: The time is over.
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
        # (Its error is raised already where it has ended by itself.)
        await asyncio.gather(task, return_exceptions=True)


def wait_for_event(event: threading.Event, timeout_s: float) -> bool:
    """Waits for an event; returns whether it came.

    Args:
      event: Set by another thread.
      timeout_s: Seconds in which this thread can run.
    """
    return any(event.wait(timeout_s / _TURNS) for _ in range(_TURNS))
