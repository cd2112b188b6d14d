"""Commands that are not to be killed half-way: SIGTERM and SIGHUP let them undo what they did."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import typer

from shared_pathways_service.cli.errors import HUNG_UP, TERMINATED

__all__ = ["run_undoing"]

T = TypeVar("T")


def run_undoing(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine as `asyncio.run`, and ends it by SIGTERM as that does by SIGINT.

    It is cancelled, and what it does about that is waited for; a second one ends the process at
    once. So does SIGHUP, with which a broken connection to a terminal ends it, unless that is
    ignored (`nohup`).

    Raises:
      typer.Exit: It was ended by a signal.
    """
    ended_by: signal.Signals | None = None

    async def run() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def end(by: signal.Signals) -> None:
            nonlocal ended_by
            ended_by = by
            loop.remove_signal_handler(by)
            task.cancel()

        heard = [
            one
            for one in (signal.SIGTERM, signal.SIGHUP)
            if signal.getsignal(one) is not signal.SIG_IGN
        ]
        for one in heard:
            loop.add_signal_handler(one, end, one)
        try:
            return await main
        finally:
            for one in heard:
                loop.remove_signal_handler(one)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if ended_by is None:
            raise
        raise typer.Exit(TERMINATED if ended_by == signal.SIGTERM else HUNG_UP) from None
