"""Runs a coroutine on a thread of its own, for callers that may have a running event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["run_in_own_loop"]

T = TypeVar("T")


def run_in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, and returns its result.

    An exception that interrupts the wait, such as KeyboardInterrupt, cancels the coroutine. It is
    raised after the clean-up of the coroutine.
    """
    begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]]
    begun = concurrent.futures.Future()

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        begun.set_result((asyncio.get_running_loop(), task))
        return await work

    with concurrent.futures.ThreadPoolExecutor(max_workers=1) as pool:
        try:
            return pool.submit(asyncio.run, run()).result()
        except BaseException:
            # Now, or once it has begun: the interrupt may have come before.
            begun.add_done_callback(_cancel)
            raise


def _cancel(
    begun: concurrent.futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]],
) -> None:
    loop, task = begun.result()
    # (The loop may be closed already.)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(task.cancel)
