from __future__ import annotations

import asyncio

import grpc
import pytest

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded

WHY = StreamEnded(SharedPathwaysError("no longer wanted"), grpc.StatusCode.ABORTED)


async def _sent(outbox: Outbox[int]) -> list[int]:
    sent: list[int] = []

    async def write(message: int) -> None:
        sent.append(message)

    await outbox.send(write)
    return sent


def test_messages_go_out_in_order_and_the_end_behind_them() -> None:
    async def work() -> None:
        outbox: Outbox[int] = Outbox(2, first=[1, 2])
        outbox.put(3)
        outbox.put(4)
        outbox.end()
        outbox.put(5)
        assert await _sent(outbox) == [1, 2, 3, 4]

    asyncio.run(work())


def test_the_first_end_counts() -> None:
    async def work() -> None:
        outbox: Outbox[int] = Outbox(1)
        outbox.end(WHY)
        outbox.end()
        with pytest.raises(StreamEnded) as caught:
            await _sent(outbox)
        assert caught.value is WHY

    asyncio.run(work())


def test_who_does_not_read_is_given_up_in_the_midst_of_a_write() -> None:
    async def work() -> None:
        outbox: Outbox[int] = Outbox(2)
        writing = asyncio.Event()

        async def never(_message: int) -> None:
            writing.set()
            await asyncio.Event().wait()

        outbox.put(0)
        sending = asyncio.create_task(outbox.send(never))
        await writing.wait()
        for number in range(3):
            outbox.put(number)
        with pytest.raises(StreamEnded) as caught:
            await sending
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(work())


def test_what_breaks_a_write_is_raised() -> None:
    async def work() -> None:
        outbox: Outbox[int] = Outbox(2, first=[1])

        async def broken(_message: int) -> None:
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            await outbox.send(broken)

    asyncio.run(work())


def test_a_write_on_its_way_ends_and_none_is_begun_behind_it() -> None:
    async def work() -> None:
        outbox: Outbox[int] = Outbox(10, first=[1, 2, 3])
        began: list[int] = []
        read = asyncio.Event()
        writing = asyncio.Event()
        ended: list[int] = []

        async def write(message: int) -> None:
            began.append(message)
            writing.set()
            await read.wait()
            ended.append(message)
            read.clear()

        sending = asyncio.create_task(outbox.send(write))
        await writing.wait()
        sending.cancel()
        asyncio.get_running_loop().call_soon(read.set)
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert (began, ended) == ([1], [1])

    asyncio.run(work())
