"""Runs commands that must not be killed half-way: on SIGTERM and SIGHUP they undo their work."""

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
    """Runs a coroutine like `asyncio.run`, and also cancels it on SIGTERM and SIGHUP.

    The coroutine is cancelled, and its clean-up is awaited. SIGHUP, which is sent when a terminal
    closes, is not handled if it is ignored (`nohup`). A second SIGTERM ends the process at once; a
    second SIGHUP has no effect, because a closed terminal sends more than one.

    Raises:
      typer.Exit: A signal ended the coroutine.
    """
    ended_by: signal.Signals | None = None

    async def run() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def end(by: signal.Signals) -> None:
            nonlocal ended_by
            if ended_by is not None:
                # Both signals arrived together, and the first one is being handled.
                return
            ended_by = by
            for one in before:
                loop.remove_signal_handler(one)
            if signal.SIGHUP in before:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            task.cancel()

        found = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
        before = {one: what for one, what in found.items() if what is not signal.SIG_IGN}
        for one in before:
            loop.add_signal_handler(one, end, one)
        try:
            return await main
        finally:
            for one, what in before.items():
                loop.remove_signal_handler(one)
                signal.signal(one, what or signal.SIG_DFL)

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        if ended_by is None:
            raise
        raise typer.Exit(TERMINATED if ended_by == signal.SIGTERM else HUNG_UP) from None
