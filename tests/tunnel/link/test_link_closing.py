"""How sessions and carriers of a link end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from shared_pathways_service.tunnel.link import link_end
from shared_pathways_service.tunnel.link.carriers import TcpCarrier
from shared_pathways_service.tunnel.link.control_frames import text_frame
from shared_pathways_service.tunnel.link.far_end import FarOptions
from shared_pathways_service.tunnel.link.link_frames import FrameKind, frame_header
from shared_pathways_service.tunnel.link.near_end import LinkState
from shared_pathways_service.tunnel.link.token_handshake import GREETING_BYTES, Result
from tests.tunnel.link.near_ends import a_near_end
from tests.tunnel.link.raw_near_end import RawNearEnd
from tests.tunnel.link.rigs import DEADLINE_S, Rig, a_rig, echo, run
from tests.tunnel.resumable_rig import a_rig as a_relay


async def in_use(rig: Rig) -> asyncio.StreamWriter:
    """Opens a connection through the link."""
    reader, writer = await rig.connect()
    writer.write(b"x")
    await reader.readexactly(1)
    return writer


def test_a_near_end_that_closes_leaves_no_session_behind() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            writer = await in_use(rig)
            (session,) = rig.far._sessions.values()
            await rig.near.close()
            while rig.far.sessions:
                await asyncio.sleep(0.01)
            while session.carriers:
                await asyncio.sleep(0.01)
            # Not by its expiry, which does not begin either.
            assert rig.far.counters.expired == 0
            assert session._expiry is None
            # Only the end of a session that was not closed is a loss.
            assert LinkState.LOST not in [state for state, _ in rig.states]
            writer.close()

    run(test)


def test_the_end_of_a_session_passes_carriers_that_are_full() -> None:
    async def never_read(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    done = asyncio.Event()

    async def test() -> None:
        async with a_rig(never_read) as rig:
            _, writer = await rig.connect()
            # More than a window: the rest waits in the local socket.
            writer.write(bytes(32 << 20))
            await rig.state(LinkState.UP)
            for carrier in rig.way.carriers:
                assert isinstance(carrier, TcpCarrier)
                carrier.is_full = True
            await rig.near.close()
            while rig.far.sessions:
                await asyncio.sleep(0.01)
            assert rig.far.counters.expired == 0
            done.set()
            writer.transport.abort()

    run(test)


def test_the_end_of_a_session_passes_port_forwards(own_directories: Path) -> None:
    async def test() -> None:
        async with a_relay(own_directories, None) as rig:
            reader, writer = await rig.connect()
            writer.write(b"x")
            await reader.readexactly(1)
            assert rig.far.sessions == 1
            await rig.relay.close()
            while rig.far.sessions:
                await asyncio.sleep(0.01)
            assert rig.far.counters.expired == 0
            writer.close()

    run(test)


def test_nothing_opens_after_the_end_of_a_session() -> None:
    async def test() -> None:
        accepted: list[None] = []

        async def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted.append(None)
            writer.close()

        async with a_rig(count) as rig:
            raw = await RawNearEnd.open(rig.way.port)
            opening = frame_header(FrameKind.OPEN, 1, 0, 1) + b"b"
            raw.writer.write(text_frame(FrameKind.BYE, 0, "enough") + opening)
            # To its end: what it would connect, it has connected.
            await raw.reader.read()
            raw.writer.close()
            assert not accepted

    run(test)


def test_an_unknown_session_is_answered_once() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            raw = await RawNearEnd.open(rig.way.port, is_new=False)
            assert raw.result is Result.UNKNOWN
            raw.writer.write(b"more")
            assert await raw.reader.read() == b""
            raw.writer.close()
            assert rig.far.counters.unknown == 1

    run(test)


def test_one_session_too_many_is_refused_and_may_retry() -> None:
    async def test() -> None:
        async with a_rig(echo, options=FarOptions(max_sessions=1)) as rig:
            writer = await in_use(rig)
            raw = await RawNearEnd.open(rig.way.port)
            assert raw.result is Result.TOO_MANY
            assert await raw.reader.read() == b""
            raw.writer.close()
            async with a_near_end(rig.way.port) as second:
                while not second.heard.failed_dials:
                    await asyncio.sleep(0.01)
                assert "too many sessions" in second.heard.failed_dials[0][1]
                await rig.near.close()
                await second.state(LinkState.UP)
            writer.close()

    run(test)


def test_unfinished_handshakes_do_not_block_others() -> None:
    async def test() -> None:
        async with a_rig(echo, options=FarOptions(max_handshakes=4)) as rig:
            # All before the far end accepts the first.
            idle = [socket.create_connection(("127.0.0.1", rig.way.port)) for _ in range(40)]
            (await in_use(rig)).close()
            rig.way.cut()
            (await in_use(rig)).close()
            # (The far end closes the oldest of them.)
            for each in idle[:-4]:
                each.setblocking(False)
                loop = asyncio.get_running_loop()
                try:
                    while await loop.sock_recv(each, GREETING_BYTES):
                        pass
                except ConnectionResetError:
                    pass
            assert rig.far.counters.refused >= len(idle) - 4
            for each in idle:
                each.close()

    run(test)


def test_local_connections_end_that_come_as_a_near_end_closes() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            before = await rig.connect()
            # (Its task has not begun.)
            mine, theirs = socket.socketpair()
            theirs.setblocking(False)
            rig.near.accept(theirs)
            await rig.near.close()
            after = await rig.connect()
            for reader, writer in (before, after):
                assert await reader.read() == b""
                writer.close()
            mine.settimeout(DEADLINE_S)
            assert await asyncio.to_thread(mine.recv, 1) == b""
            mine.close()

    run(test)


def test_a_carrier_whose_other_end_hangs_up_is_not_used_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Its silence is not what ends it.
    monkeypatch.setattr(link_end, "_PING_INTERVAL_S", 1000.0)

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()

    async def test() -> None:
        async with a_rig(flood) as rig:
            name = b"a raw session 16"
            raw = await RawNearEnd.open(rig.way.port, session=name)
            session = rig.far._sessions[name]
            opening = frame_header(FrameKind.OPEN, 1, 0, 1) + b"b"
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            raw.writer.write(opening)
            while not session.end_of_link.link.replay_bytes:
                await asyncio.sleep(0.01)
            # It has not read what is on its way, and never will.
            raw.writer.write_eof()
            while session.carriers:
                await asyncio.sleep(0.01)
            raw.writer.transport.abort()

    run(test)
