"""A relay in front of an API server with scripted behaviour: bytes, back-pressure, and closing."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import time
from collections.abc import Callable

import psutil
import pytest
from aiohttp import web

from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.pump import PumpTimes
from shared_pathways_service.tunnel.relay import FailureKind
from tests.tunnel.api_server import ApiServer, echo, pod_that_waits, says, sends
from tests.tunnel.conftest import DEADLINE_S, Rig, Rigs

LARGE = random.Random(7).randbytes(5_000_000)


async def connected(rig: Rig) -> socket.socket:
    """Connects without a buffer of asyncio's in between."""
    local = socket.socket(socket.AF_UNIX)
    local.setblocking(False)
    address = rig.address.removeprefix("unix:")
    await asyncio.get_running_loop().sock_connect(local, address)
    return local


async def stand_still(counter: Callable[[], int]) -> None:
    """Waits until what has begun to move has come to a stop."""
    before = 0
    while not before or before != counter():
        before = counter()
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("local_port", [None, 0])
def test_bytes_go_both_ways(rigs: Rigs, local_port: int | None) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(LARGE)
        assert await reader.readexactly(len(LARGE)) == LARGE
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        counted = rig.relay.counters
        assert (counted.opened, counted.connections, counted.redials) == (1, 1, 0)
        assert (counted.sent_bytes, counted.received_bytes) == (len(LARGE) + 1, len(LARGE) + 1)
        writer.close()
        await rig.server.ended.wait()
        assert not rig.failures

    rigs.run(ApiServer(echo), test, local_port=local_port)


def test_each_connection_is_dialled_separately(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        async def one(index: int) -> None:
            reader, writer = await rig.connect()
            data = bytes((index,)) * 300_000
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
            writer.close()

        await asyncio.gather(*(one(i) for i in range(8)))
        assert len({headers["Sec-WebSocket-Key"] for headers in rig.server.dials}) == 8

    rigs.run(ApiServer(echo), test)


def test_the_end_of_the_pods_side_comes_after_its_last_byte(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == LARGE
        writer.close()
        assert not rig.failures

    rigs.run(ApiServer(sends(LARGE)), test)


def test_a_closing_local_side_has_sent_everything(rigs: Rigs) -> None:
    server = ApiServer()
    server.answers.append(server.keeps)

    async def test(rig: Rig) -> None:
        _, writer = await rig.connect()
        writer.write(LARGE)
        writer.close()
        await writer.wait_closed()
        await server.ended.wait()
        assert bytes(server.heard) == LARGE
        assert not rig.failures

    rigs.run(server, test)


def test_a_half_closed_local_side_still_gets_the_answer(rigs: Rigs) -> None:
    async def answer(socket: web.WebSocketResponse) -> None:
        asked = await socket.receive_bytes()
        await socket.send_bytes(b"\0" + asked[1:].upper())
        await pod_that_waits(socket)

    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"question")
        writer.write_eof()
        assert await reader.readexactly(8) == b"QUESTION"
        assert not rig.failures
        writer.close()

    rigs.run(ApiServer(answer), test, pump=PumpTimes(half_closed=Timeout(DEADLINE_S)))


def test_a_half_closed_connection_ends_when_nothing_more_comes(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"question")
        writer.write_eof()
        # The way to the pod knows no half-close.
        assert await reader.read() == b""
        writer.close()
        await rig.server.ended.wait()
        assert not rig.failures

    rigs.run(ApiServer(pod_that_waits), test, pump=PumpTimes(half_closed=Timeout(0.1)))


def test_a_closed_port_is_reported_in_the_far_ends_words(rigs: Rigs) -> None:
    words = "error forwarding port 29000 to pod x: connection refused"

    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        failure = await rig.failure()
        assert (failure.kind, failure.is_final) == (FailureKind.PORT, False)
        assert failure.error.cause == words
        # It may be that it does not listen yet: the next connection finds out.
        reader, writer = await rig.connect()
        writer.write(b"now")
        assert await reader.readexactly(3) == b"now"
        writer.close()

    rigs.run(ApiServer(says(words), echo), test)


def test_the_servers_pings_are_answered(rigs: Rigs) -> None:
    ponged = asyncio.Event()

    async def asks(socket: web.WebSocketResponse) -> None:
        await socket.ping(b"there?")
        message = await socket.receive()
        assert (message.type.name, message.data) == ("PONG", b"there?")
        ponged.set()

    async def test(rig: Rig) -> None:
        _, writer = await rig.connect()
        await ponged.wait()
        writer.close()

    rigs.run(ApiServer(asks, autoping=False), test)


def test_a_stalled_reader_throttles_a_fast_sender(rigs: Rigs) -> None:
    sent = 0
    total = 150_000_000
    block = b"\0" + bytes(1 << 20)

    async def floods(socket: web.WebSocketResponse) -> None:
        nonlocal sent
        while sent < total:
            await socket.send_bytes(block)
            sent += len(block) - 1
        await socket.close()

    async def test(rig: Rig) -> None:
        before = psutil.Process().memory_info().rss
        loop = asyncio.get_running_loop()
        with await connected(rig) as local:
            await stand_still(lambda: sent)
            assert sent < total / 2
            assert psutil.Process().memory_info().rss - before < 60_000_000
            received = len(await loop.sock_recv(local, 1 << 20))
            # As in a process that is stopped for a moment: the time of a ping that waited behind
            # the data is over when the data moves on.
            time.sleep(0.3)
            while data := await loop.sock_recv(local, 1 << 20):
                received += len(data)
        assert received == sent
        assert not rig.failures

    # Pings would wait behind the data; nobody is given up for that.
    rigs.run(ApiServer(floods), test, pump=PumpTimes(ping_s=0.1, pong=Timeout(0.1)))


def test_a_stalled_pod_throttles_a_fast_local_side(rigs: Rigs) -> None:
    go_on = asyncio.Event()
    arrived, wanted = hashlib.sha256(), hashlib.sha256()
    block = random.Random(8).randbytes(1 << 20)
    blocks, sent = 100, 0

    async def stalls(socket: web.WebSocketResponse) -> None:
        transport = socket._req.transport  # type: ignore[union-attr]
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await go_on.wait()
        transport.resume_reading()
        async for message in socket:
            arrived.update(message.data[1:])

    async def send(local: socket.socket) -> None:
        nonlocal sent
        for _ in range(blocks):
            await asyncio.get_running_loop().sock_sendall(local, block)
            wanted.update(block)
            sent += 1
        local.close()

    async def test(rig: Rig) -> None:
        before = psutil.Process().memory_info().rss
        local = await connected(rig)
        await rig.server.opened.wait()
        sending = asyncio.create_task(send(local))
        await stand_still(lambda: sent)
        assert sent < blocks
        assert psutil.Process().memory_info().rss - before < 60_000_000
        go_on.set()
        await sending
        await rig.server.ended.wait()
        assert arrived.digest() == wanted.digest()
        assert not rig.failures

    rigs.run(ApiServer(stalls), test)


def test_closing_ends_open_connections_and_dials(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        dialling, other = await rig.connect()
        await rig.relay.close()
        assert await reader.read() == b""
        assert await dialling.read() == b""
        writer.close()
        other.close()
        assert not rig.failures

    rigs.run(ApiServer(echo, 503), test)
