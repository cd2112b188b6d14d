"""The time-out of a block of asynchronous code."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.patience import patience
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within


def test_a_block_that_takes_too_long_is_cancelled() -> None:
    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with within(Timeout(0.5)) as block:
                await asyncio.Event().wait()
        assert block.expired()

    with patience(0.1):
        asyncio.run(work())


def test_a_block_that_ends_in_time_leaves_nothing() -> None:
    async def work() -> None:
        async with within(Timeout(0.01)):
            pass
        await asyncio.sleep(0.05)

    with patience(1):
        asyncio.run(work())


def test_an_error_in_the_block_is_raised() -> None:
    async def work() -> None:
        async with within(Timeout(60.0)):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        asyncio.run(work())


def test_a_cancellation_from_outside_is_no_time_out() -> None:
    async def work() -> None:
        async with within(Timeout(60.0)):
            await asyncio.Event().wait()

    async def cancel() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def test_a_stall_of_this_process_does_not_end_the_block() -> None:
    async def work() -> None:
        arrived = asyncio.Event()

        async def hop() -> None:
            # Wakes the block some steps after the loop runs again, as an answer does.
            for _ in range(20):
                await asyncio.sleep(0)
            arrived.set()

        async with within(Timeout(0.5)):
            waiting = asyncio.create_task(hop())
            time.sleep(2.0)
            await arrived.wait()
            await waiting

    with patience(1):
        asyncio.run(work())


def test_the_block_may_last_longer_once_the_factor_rises() -> None:
    async def work() -> None:
        with patience(0.1):
            block = within(Timeout(1.0))
            await block.__aenter__()
        with patience(1):
            await asyncio.sleep(0.3)
            await block.__aexit__(None, None, None)

    asyncio.run(work())
