"""Memory is bounded, and others go on, where one side or a carrier does not read."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil

from shared_pathways_service.tunnel.link.far_end import FarOptions
from shared_pathways_service.tunnel.link.link_connections import MAX_MESSAGE_BYTES
from shared_pathways_service.tunnel.link.link_frames import FrameKind, frame_header
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.token_handshake import GREETING_BYTES, Result
from shared_pathways_service.tunnel.link.windows import (
    BUDGET_BYTES,
    MAX_CONNECTIONS,
    SHARE_BYTES,
    WINDOW_BYTES,
)
from tests.tunnel.link.far_programs import far_program
from tests.tunnel.link.near_ends import NearRig, a_near_end
from tests.tunnel.link.raw_near_end import RawNearEnd
from tests.tunnel.link.rigs import Rig, a_rig, run

#: What a connection is asked for by its first byte.
FLOOD, IGNORE, ECHO = b"f", b"i", b"e"
RAW = b"a raw session 16"
BLOCK = bytes(1 << 20)
#: What an end keeps at most of one connection that its peer does not read, with the ends of frames.
ONE = 4 * WINDOW_BYTES + 2
#: What an end keeps of all connections of a session.
ALL = BUDGET_BYTES + MAX_CONNECTIONS * (SHARE_BYTES + 2) + (256 << 10)


class Proxy:
    """Stands in for a proxy: floods, never reads, or sends back what comes."""

    def __init__(self) -> None:
        self.is_over = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wish = b""  # (of a connection that ends before it says)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            wish = await reader.readexactly(1)
            if wish == FLOOD:
                while True:
                    writer.write(BLOCK)
                    await writer.drain()
            elif wish == IGNORE:
                writer.write(IGNORE)
                await self.is_over.wait()
            while wish == ECHO and (data := await reader.read(1 << 16)):
                writer.write(data)
                await writer.drain()
        writer.transport.abort() if wish == IGNORE else writer.close()


class Stuck:
    """Connections that a client does not read, or whose server does not."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.tasks: list[asyncio.Task[None]] = []
        self.writers: list[asyncio.StreamWriter] = []

    async def ask_for_a_flood(self, rig: Rig | NearRig) -> None:
        reader, writer = await rig.connect()
        self.writers.append(writer)
        writer.write(FLOOD)
        await reader.readexactly(1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def send_to_a_server_that_ignores(self, rig: Rig | NearRig) -> None:
        reader, writer = await rig.connect()
        self.writers.append(writer)
        writer.write(IGNORE)
        await reader.readexactly(1)

        async def send() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(BLOCK)
                    await writer.drain()

        self.tasks.append(asyncio.create_task(send()))


@contextlib.asynccontextmanager
async def stuck_connections(proxy: Proxy) -> AsyncIterator[Stuck]:
    stuck = Stuck(proxy)
    try:
        yield stuck
    finally:
        proxy.is_over.set()
        for task in stuck.tasks:
            task.cancel()
        await asyncio.gather(*stuck.tasks, return_exceptions=True)
        for writer in stuck.writers:
            writer.transport.abort()


async def exchange(rig: Rig | NearRig, blocks: int = 12) -> None:
    """Sends more than a window to an echo, and back."""
    reader, writer = await rig.connect()

    async def send() -> None:
        writer.write(ECHO)
        for _ in range(blocks):
            writer.write(BLOCK)
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    received = 0
    while data := await reader.read(1 << 18):
        received += len(data)
    await sending
    writer.close()
    assert received == blocks * len(BLOCK)


async def until(condition: Callable[[], bool]) -> None:
    """Waits until the test's deadline, which `run` sets."""
    while not condition():
        await asyncio.sleep(0.01)


def links(rig: Rig) -> tuple[Link, Link]:
    """Returns the near end's and the far end's state of the rig's own session."""
    name = rig.near._credentials.session
    return rig.near.link, rig.far._sessions[name].end_of_link.link


def test_a_client_that_never_reads_holds_a_window_and_others_go_on() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve) as rig, stuck_connections(proxy) as stuck:
            await stuck.ask_for_a_flood(rig)
            near, far = links(rig)
            await until(lambda: far.replay_bytes >= WINDOW_BYTES)
            await exchange(rig)
            assert far.replay_bytes <= ONE
            assert near.held_bytes <= ONE
            assert near.replay_bytes <= 2

    run(test)


def test_a_proxy_that_never_reads_holds_a_window_and_others_go_on() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve) as rig, stuck_connections(proxy) as stuck:
            await stuck.send_to_a_server_that_ignores(rig)
            near, far = links(rig)
            await until(lambda: near.replay_bytes >= WINDOW_BYTES)
            await exchange(rig)
            assert near.replay_bytes <= ONE
            assert far.held_bytes <= ONE
            assert far.replay_bytes <= 2

    run(test)


def test_of_64_connections_one_that_moves_does_although_all_others_are_stuck() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve) as rig, stuck_connections(proxy) as stuck:
            for _ in range(MAX_CONNECTIONS - 1):
                await stuck.ask_for_a_flood(rig)
            near, far = links(rig)
            # (Nine have their window or most of it, and the others a share.)
            await until(lambda: far.replay_bytes >= BUDGET_BYTES)
            await exchange(rig)
            assert len(near.connections) >= MAX_CONNECTIONS - 1
            assert far.replay_bytes <= ALL
            assert near.held_bytes <= ALL
            async with a_near_end(rig.way.port) as other:
                await exchange(other)
            # One more than there may be.
            await stuck.ask_for_a_flood(rig)
            reader, writer = await rig.connect()
            writer.write(ECHO)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_near_end_that_never_reads_its_carrier_disturbs_no_other_session() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve) as rig:
            raw = await RawNearEnd.open(rig.way.port, session=RAW)
            assert raw.result is Result.ACCEPTED
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            far = rig.far._sessions[RAW].end_of_link.link
            for number in range(1, MAX_CONNECTIONS + 1):
                opening = frame_header(FrameKind.OPEN, number, 0, 1) + b"b"
                asking = frame_header(FrameKind.WHOLE, number, 1, 1) + FLOOD
                raw.writer.write(opening + asking)
            await until(lambda: far.replay_bytes >= BUDGET_BYTES)
            await exchange(rig)
            assert far.replay_bytes <= ALL
            raw.writer.transport.abort()

    run(test)


def test_a_peer_that_begins_messages_and_never_ends_them_is_ended() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve) as rig:
            raw = await RawNearEnd.open(rig.way.port, session=RAW)
            far = rig.far._sessions[RAW].end_of_link.link
            raw.writer.write(frame_header(FrameKind.OPEN, 1, 0, 1) + b"b")
            part = bytes(256 << 10)
            with contextlib.suppress(ConnectionError):
                for offset in range(1, 4 * MAX_MESSAGE_BYTES, len(part)):
                    raw.writer.write(frame_header(FrameKind.PART, 1, offset, len(part)) + part)
                    await raw.writer.drain()
                    assert far.held_bytes <= MAX_MESSAGE_BYTES + ONE
            assert b"is too long" in await raw.reader.read()
            raw.writer.close()
            await exchange(rig)

    run(test)


def test_peers_without_the_token_do_no_harm() -> None:
    async def test() -> None:
        proxy = Proxy()
        async with a_rig(proxy.serve, options=FarOptions(max_handshakes=4)) as rig:

            async def send_much() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.way.port)
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await reader.readexactly(GREETING_BYTES)
                    while True:
                        writer.write(BLOCK)
                        await writer.drain()
                writer.close()

            async def send_nothing() -> None:
                reader, writer = await asyncio.open_connection("127.0.0.1", rig.way.port)
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()

            idle = [asyncio.create_task(send_nothing()) for _ in range(8)]
            for _ in range(8):
                await send_much()
            await exchange(rig)
            rig.way.cut()
            await exchange(rig)
            assert rig.far.counters.refused >= 12
            assert len(rig.far._handshakes) <= 4
            await rig.near.close()
            await rig.far.close()
            await asyncio.gather(*idle)

    run(test)


def test_a_process_with_stuck_clients_stays_small(tmp_path: Path) -> None:
    async def test() -> None:
        proxy = Proxy()
        server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
        target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with far_program(tmp_path, target) as program:
            port = await asyncio.to_thread(lambda: program.port)
            process = psutil.Process(program.process.pid)
            before = process.memory_info().rss
            async with a_near_end(port) as rig, stuck_connections(proxy) as stuck:
                for _ in range(32):
                    await stuck.ask_for_a_flood(rig)
                    await stuck.send_to_a_server_that_ignores(rig)
                # (Those at the limit of connections are closed; others go on all the same.)
                await until(lambda: rig.near.link.replay_bytes >= BUDGET_BYTES // 2)
                async with a_near_end(port) as other:
                    await exchange(other, blocks=50)
                grown = process.memory_info().rss - before
            # Both directions, and what the allocator keeps.
            assert grown < 3 * ALL
        server.close()

    run(test)
