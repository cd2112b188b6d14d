"""A relay whose dials fail, or whose connections break or fall silent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.pump import PumpTimes
from shared_pathways_service.tunnel.relay import FailureKind
from tests.tunnel.api_server import ApiServer, echo, hang_up, pod_that_waits, says
from tests.tunnel.conftest import Rig, Rigs


@pytest.mark.parametrize("status", [403, 404, 410])
def test_a_final_answer_ends_the_relay_at_once(rigs: Rigs, status: int) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        failure = await rig.failure()
        assert (failure.kind, failure.is_final) == (FailureKind.REFUSED, True)
        assert failure.error.pod == "proxy-x"
        assert failure.error.__cause__.status == status  # type: ignore[union-attr]
        later, writer = await rig.connect()
        assert await later.read() == b""
        writer.close()
        assert len(rig.server.dials) == 1
        assert len(rig.failures) == 1

    rigs.run(ApiServer(status), test)


@pytest.mark.parametrize("status", [503, 500, 429])
def test_a_transient_failure_is_dialled_again(rigs: Rigs, status: int) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        assert len(rig.server.dials) == 3
        assert not rig.failures

    rigs.run(ApiServer(status, status, echo), test)


def test_repeated_dialling_has_an_end(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        failure = await rig.failure()
        assert (failure.kind, failure.is_final) == (FailureKind.UNREACHABLE, False)
        assert "503" in failure.error.cause
        assert len(rig.server.dials) > 1
        assert rig.relay.counters.redials == len(rig.server.dials) - 1
        assert rig.relay.counters.opened == 0

    rigs.run(ApiServer(503), test, redial_s=0.5)


def test_a_dial_without_an_answer_has_an_end(rigs: Rigs) -> None:
    async def hang(_headers: object) -> object:
        await asyncio.Event().wait()
        raise AssertionError

    async def test(rig: Rig) -> None:
        rig.relay._dial = hang  # type: ignore[assignment]
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        assert (await rig.failure()).kind is FailureKind.UNREACHABLE

    rigs.run(ApiServer(echo), test, dial_timeout_s=0.1, redial_s=0.1)


@pytest.mark.parametrize("words", ["", "connection refused"])
def test_bytes_before_an_early_end_are_delivered(rigs: Rigs, words: str) -> None:
    async def speaks(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\0last words")
        await (says(words)(socket) if words else socket.close())
        hang_up(socket)

    async def test(rig: Rig) -> None:
        async def dial_slowly(headers: Mapping[str, str]) -> aiohttp.ClientResponse:
            response = await rig.server.dial(headers)
            while response.connection and response.connection.transport:
                await asyncio.sleep(0.01)
            return response

        rig.relay._dial = dial_slowly
        reader, writer = await rig.connect()
        got = await reader.read()
        assert got == b"last words", rig.failures
        writer.close()
        assert [f.error.cause for f in rig.failures] == ([words] if words else [])

    rigs.run(ApiServer(speaks), test)


def test_a_broken_connection_is_reported(rigs: Rigs) -> None:
    async def breaks(socket: web.WebSocketResponse) -> None:
        await socket.receive()
        hang_up(socket)

    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"x")
        assert await reader.read() == b""
        writer.close()
        failure = await rig.failure()
        assert (failure.kind, failure.is_final) == (FailureKind.BROKEN, False)
        assert isinstance(failure.error, TunnelError)

    rigs.run(ApiServer(breaks), test)


def test_a_protocol_violation_of_the_server_is_reported(rigs: Rigs) -> None:
    async def breaks(socket: web.WebSocketResponse) -> None:
        await socket.send_str("text")
        await pod_that_waits(socket)

    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        assert "broke the protocol" in (await rig.failure()).error.cause

    rigs.run(ApiServer(breaks), test)


def test_silence_after_pings_ends_the_connection(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        failure = await rig.failure()
        assert failure.kind is FailureKind.BROKEN
        assert "ping" in failure.error.cause

    rigs.run(
        ApiServer(pod_that_waits, autoping=False),
        test,
        pump=PumpTimes(ping_s=0.1, pong=Timeout(0.3)),
    )


def test_pongs_keep_a_silent_connection_alive(rigs: Rigs) -> None:
    pings = asyncio.Event()

    async def counts(socket: web.WebSocketResponse) -> None:
        for _ in range(5):
            message = await socket.receive()
            assert message.type.name == "PING"
            await socket.pong(message.data)
        pings.set()
        await echo(socket)

    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        await pings.wait()
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"
        writer.close()
        assert not rig.failures

    rigs.run(
        ApiServer(counts, autoping=False), test, pump=PumpTimes(ping_s=0.05, pong=Timeout(60.0))
    )


def test_a_dead_pod_ends_everything_at_once(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        open_ones = [await rig.connect() for _ in range(3)]
        for reader, writer in open_ones:
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        rig.relay.pod_died("evicted")
        rig.relay.pod_died("told again")
        for reader, writer in open_ones:
            assert await reader.read() == b""
            writer.close()
        reader, writer = await rig.connect()
        assert await reader.read() == b""
        writer.close()
        assert len(rig.server.dials) == 3
        (failure,) = rig.failures
        assert (failure.kind, failure.is_final) == (FailureKind.POD_DIED, True)
        assert failure.error.cause == "evicted"

    rigs.run(ApiServer(echo), test)


def test_a_dead_pod_ends_dialling(rigs: Rigs) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        while not rig.server.dials:
            await asyncio.sleep(0.01)
        rig.relay.pod_died("deleted")
        assert await reader.read() == b""
        writer.close()

    rigs.run(ApiServer(503), test)
