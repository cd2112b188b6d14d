"""A coroutine on a thread of its own ends with the call that waits for it."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from shared_pathways_service.homes.own_loop import run_in_own_loop


def test_it_runs_where_a_loop_runs_already() -> None:
    async def add(value: int) -> int:
        return value + 1

    async def main() -> int:
        return run_in_own_loop(add(1))

    assert asyncio.run(main()) == 2


def test_ctrl_c_cancels_it() -> None:
    cleaned_up = []

    async def endless() -> None:
        # (A real one interrupts the system call in which the main thread waits.)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            cleaned_up.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_in_own_loop(endless())
    assert cleaned_up
