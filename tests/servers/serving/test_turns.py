"""Timeouts that do not count a standstill of the process that waits."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from shared_pathways_service.servers.serving import turns


def test_what_came_while_the_event_loop_stood_still_is_in_time() -> None:
    async def use() -> str:
        loop = asyncio.get_running_loop()
        come: asyncio.Future[str] = loop.create_future()

        async def read() -> str:
            return await come

        def stand_still() -> None:
            time.sleep(0.4)
            loop.call_soon(come.set_result, "a request")

        loop.call_soon(stand_still)
        return await turns.wait_for(read(), 0.2)

    assert asyncio.run(use()) == "a request"


async def endless(ended: list[str]) -> None:
    """Never returns; says when it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("cancelled")


def test_what_does_not_come_is_cancelled() -> None:
    ended: list[str] = []

    async def use() -> None:
        with pytest.raises(TimeoutError):
            await turns.wait_for(endless(ended), 0.05)

    asyncio.run(use())
    assert ended == ["cancelled"]


def test_who_waits_and_is_cancelled_leaves_nothing() -> None:
    ended: list[str] = []

    async def use() -> None:
        waiting = asyncio.create_task(turns.wait_for(endless(ended), 60.0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(use())
    assert ended == ["cancelled"]


def test_what_fails_fails() -> None:
    async def read() -> None:
        raise ConnectionError("broken off")

    with pytest.raises(ConnectionError, match="broken off"):
        asyncio.run(turns.wait_for(read(), 60.0))


def test_an_event_is_waited_for_in_turns() -> None:
    event = threading.Event()
    assert not turns.wait_for_event(event, 0.01)
    timer = threading.Timer(0.01, event.set)
    timer.start()
    assert turns.wait_for_event(event, 60.0)
    timer.join()
