"""Waits for the first of several awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["first_of"]


async def first_of(*coroutines: Coroutine[Any, Any, None]) -> None:
    """Runs all until one ends, and cancels the others; raises its error.

    If several have ended at once, the error is that of the first of them, as they are given.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
