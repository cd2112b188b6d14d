"""Runs background tasks with an owner that ends them and gets their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

__all__ = ["Background"]


class Background:
    """A set of tasks; `on_failure` gets the error of a task, but not its cancellation."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Starts a coroutine as a task."""
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def stop(self) -> None:
        """Cancels all tasks, and waits for them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._on_failure(failure)
