"""Both ends of a link on real sockets, with carriers that break."""

from __future__ import annotations

import asyncio
import hashlib
import random
import socket
import time

import pytest

from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.link import link_end
from shared_pathways_service.tunnel.link.carriers import TcpCarrier
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd, FarOptions
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.link_events import Protocol
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.near_end import LinkState
from shared_pathways_service.tunnel.link.token_handshake import (
    GREETING_BYTES,
    Greeting,
    Hello,
    hello,
)
from shared_pathways_service.tunnel.websocket_carrier import is_address_of_this_machine
from tests.tunnel.link.rigs import TOKEN, a_rig, echo, run, sink_with_digest


def test_bytes_pass_in_both_directions_and_ends_as_well() -> None:
    async def test() -> None:
        async with a_rig(sink_with_digest) as rig:
            data = random.Random(1).randbytes(3_000_000)
            reader, writer = await rig.connect()
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == hashlib.sha256(data).digest()
            writer.close()
        assert rig.states[0] == (LinkState.UP, "")

    run(test)


def test_no_byte_is_lost_or_doubled_while_carriers_are_cut() -> None:
    async def test() -> None:
        data = random.Random(2).randbytes(8_000_000)
        async with a_rig(echo) as rig:

            async def through() -> bytes:
                reader, writer = await rig.connect()

                async def send() -> None:
                    for start in range(0, len(data), 100_000):
                        writer.write(data[start : start + 100_000])
                        await writer.drain()
                    writer.write_eof()

                sender = asyncio.create_task(send())
                received = bytearray()
                cut_at = 0
                while chunk := await reader.read(1 << 16):
                    received += chunk
                    if len(received) >= cut_at:
                        cut_at = len(received) + 250_000
                        rig.way.cut()
                await sender
                writer.close()
                return bytes(received)

            results = await asyncio.gather(*(through() for _ in range(3)))
            for result in results:
                assert result == data
            # It did break.
            assert rig.way.dialled > 10

    run(test)


def test_a_pause_of_the_network_is_reported_and_survived() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connect()
            writer.write(b"before")
            assert await reader.readexactly(6) == b"before"
            await rig.both_carriers()
            rig.way.is_open.clear()
            rig.way.cut()
            await rig.state(LinkState.LOST)
            writer.write(b"meanwhile")
            while len(rig.heard.failed_dials) < 3:
                await asyncio.sleep(0.01)
            assert rig.heard.failed_dials == [
                (n, "the network is unreachable") for n in range(1, 1 + len(rig.heard.failed_dials))
            ]
            rig.states.clear()
            rig.way.is_open.set()
            await rig.state(LinkState.UP)
            assert await reader.readexactly(9) == b"meanwhile"
            assert rig.near.losses == 1
            assert rig.near.failed_dials == len(rig.heard.failed_dials)
            writer.close()

    run(test)


def test_a_final_refusal_ends_the_session_at_once() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connection_in_use()
            rig.way.refusal = PermissionError("the pod is gone")
            rig.way.cut()
            assert await rig.state(LinkState.OVER) == "the pod is gone"
            assert await reader.read() == b""
            assert rig.heard.failed_dials == []
            writer.close()

    run(test)


def test_a_session_ends_that_has_no_carrier_for_too_long() -> None:
    async def test() -> None:
        async with a_rig(echo, keep_s=0.1) as rig:
            reader, writer = await rig.connection_in_use()
            rig.way.is_open.clear()
            rig.way.cut()
            reason = await rig.state(LinkState.OVER)
            assert reason == "no connection for 0.1 s; the last: the network is unreachable"
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_clock_that_is_set_forward_ends_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connection_in_use()
            rig.way.is_open.clear()
            rig.way.cut()
            await rig.state(LinkState.LOST)
            an_hour_later = time.time() + 3600
            monkeypatch.setattr(time, "time", lambda: an_hour_later)
            seen = len(rig.heard.failed_dials)
            while len(rig.heard.failed_dials) < seen + 2:
                await asyncio.sleep(0.01)
            rig.way.is_open.set()
            await rig.state(LinkState.UP)
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            writer.close()

    run(test)


def test_a_carrier_whose_address_is_gone_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connection_in_use()
            before = rig.way.dialled
            monkeypatch.setattr(TcpCarrier, "is_stale", True)
            while rig.way.dialled < before + 2:
                await asyncio.sleep(0.01)
            monkeypatch.undo()
            reason = await rig.state(LinkState.LOST)
            assert reason == "this machine no longer has the address of the connection"
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            writer.close()

    run(test)


@pytest.mark.parametrize(
    ("address", "is_ours"),
    [("127.0.0.1", True), ("::1", True), ("192.0.2.1", False), ("2001:db8::1", False)],
)
def test_addresses_of_this_machine(address: str, is_ours: bool) -> None:
    # (The others are reserved for documentation.)
    assert is_address_of_this_machine(address) is is_ours


def test_carriers_from_before_a_sleep_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connection_in_use()
            before = rig.way.dialled
            # As if the machine had slept between any two looks.
            monkeypatch.setattr(link_end, "_ASLEEP_S", 0.0)
            while rig.way.dialled < before + 2:
                await asyncio.sleep(0.01)
            monkeypatch.undo()
            assert await rig.state(LinkState.LOST) == "this machine was asleep"
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            writer.close()

    run(test)


def test_a_far_end_that_restarts_ends_the_session_with_the_reason() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            reader, writer = await rig.connect()
            writer.write(b"x")
            await reader.readexactly(1)
            second = FarEnd(TOKEN, connector_of("127.0.0.1:1"))
            rig.way.port = await second.start("127.0.0.1", 0)
            rig.way.cut()
            assert "restarted" in await rig.state(LinkState.OVER)
            assert await reader.read() == b""
            assert second.counters.unknown >= 1
            writer.close()
            await second.close()

    run(test)


def test_a_restart_that_one_carrier_notices_first_is_a_loss_before_the_end() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            await rig.both_carriers()
            second = FarEnd(TOKEN, connector_of("127.0.0.1:1"))
            rig.way.port = await second.start("127.0.0.1", 0)
            rig.way.carriers.pop().close()
            await rig.state(LinkState.OVER)
            after_up = [state for state, _ in rig.states[-2:]]
            assert after_up == [LinkState.LOST, LinkState.OVER]
            assert rig.near.losses == 1
            await second.close()

    run(test)


def test_a_session_without_a_carrier_expires_at_the_far_end() -> None:
    async def test() -> None:
        async with a_rig(echo, options=FarOptions(keep_s=0.2)) as rig:
            reader, writer = await rig.connection_in_use()
            rig.way.is_open.clear()
            rig.way.cut()
            while not rig.far.counters.expired:
                await asyncio.sleep(0.01)
            rig.way.is_open.set()
            assert "given the session up" in await rig.state(LinkState.OVER)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_without_the_token_nothing_opens() -> None:
    async def test() -> None:
        async with a_rig(echo, token=b"another") as rig:
            while rig.far.counters.refused < 2:
                await asyncio.sleep(0.01)
            assert rig.far.counters.accepted == 0
            assert rig.states == []

    run(test)


def test_a_recorded_handshake_opens_nothing() -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            first = await asyncio.open_connection("127.0.0.1", rig.way.port)
            greeting = Greeting.decode(await first[0].readexactly(GREETING_BYTES))
            recorded = hello(TOKEN, greeting, Hello(b"s" * 16, is_new=True, nonce=b"n" * 16))
            second = await asyncio.open_connection("127.0.0.1", rig.way.port)
            await second[0].readexactly(GREETING_BYTES)
            second[1].write(recorded)
            assert await second[0].read() == b""
            assert rig.far.counters.refused == 1
            for _, writer in (first, second):
                writer.close()

    run(test)


@pytest.mark.parametrize("words", [b"x", b""], ids=["speaking", "silent"])
def test_a_proxy_that_accepts_no_connection_closes_the_local_one(words: bytes) -> None:
    async def test() -> None:
        async with a_rig(echo) as rig:
            with socket.create_server(("127.0.0.1", 0)) as unused:
                port = unused.getsockname()[1]
            rig.far._connect = connector_of(f"127.0.0.1:{port}")
            reader, writer = await rig.connect()
            writer.write(words)
            assert await reader.read() == b""
            writer.close()

    run(test)


def test_a_silent_client_is_connected_as_well() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"who is there?")
        assert await reader.read() == b""
        writer.close()

    async def test() -> None:
        async with a_rig(greet) as rig:
            reader, writer = await rig.connect()
            assert await reader.readexactly(13) == b"who is there?"
            writer.close()

    run(test)


def test_a_client_that_spoke_while_this_process_was_stopped_is_recognized(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Protocol] = []
    original = Link.open

    def note(link: Link, protocol: Protocol) -> int | None:
        opened.append(protocol)
        return original(link, protocol)

    monkeypatch.setattr(Link, "open", note)

    async def test() -> None:
        # The time is over in the moment in which there is something to read.
        async with a_rig(echo, speaks=Timeout(0.0)) as rig:
            mine, theirs = socket.socketpair()
            with mine:
                mine.sendall(PREFACE)
                theirs.setblocking(False)
                rig.near.accept(theirs)
                while not opened:
                    await asyncio.sleep(0.01)
                assert opened == [Protocol.HTTP2]

    run(test)


def test_handshakes_have_a_deadline() -> None:
    async def test() -> None:
        async with a_rig(echo, options=FarOptions(hello=Timeout(0.1))) as rig:
            reader, writer = await asyncio.open_connection("127.0.0.1", rig.way.port)
            await reader.readexactly(GREETING_BYTES)
            assert await reader.read() == b""
            writer.close()

    run(test)
