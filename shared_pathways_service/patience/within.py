"""The time-out of a block of asynchronous code."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from .factor import Timeout

__all__ = ["within"]


@contextlib.asynccontextmanager
async def within(limit: Timeout) -> AsyncIterator[asyncio.Timeout]:
    """Like ``asyncio.timeout()``, but lasts longer if the factor rises, or this process stalls.

    When a stopped process continues, all its timers are due, before it has read what has arrived.
    """
    loop = asyncio.get_running_loop()
    deadline = limit.deadline()
    timer: asyncio.TimerHandle | None = None

    def arm() -> None:
        nonlocal timer
        # (Not for all that is left: a timer that is a little late would excuse the whole wait.)
        if part_s := deadline.part_s:
            timer = loop.call_later(part_s, ring, loop.time(), part_s)
        else:
            block.reschedule(loop.time())

    def ring(since: float, planned_s: float) -> None:
        deadline.waited(loop.time() - since, planned_s)
        arm()

    async with asyncio.timeout(None) as block:
        arm()
        try:
            yield block
        finally:
            if timer is not None:
                timer.cancel()
