"""Commands that are not to be killed half-way: SIGTERM lets them undo what they did."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from shared_pathways_service.cli.errors import TERMINATED

__all__ = ["run_undoing"]

T = TypeVar("T")


def run_undoing(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run`, and ends it by SIGTERM as that does by SIGINT.

    It is cancelled, and what it does about that is waited for; a second SIGTERM ends the process
    at once.

    Raises:
      typer.Exit: It was ended by SIGTERM.
    """
    terminated = False

    async def run() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def end() -> None:
            nonlocal terminated
            terminated = True
            loop.remove_signal_handler(signal.SIGTERM)
            task.cancel()

        loop.add_signal_handler(signal.SIGTERM, end)
        try:
            return await main
        finally:
            loop.remove_signal_handler(signal.SIGTERM)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if not terminated:
            raise
        raise typer.Exit(TERMINATED) from None
