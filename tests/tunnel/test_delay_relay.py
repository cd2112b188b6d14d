"""The relay that stands for a slow line passes every byte, in its time."""

from __future__ import annotations

import asyncio

import pytest

from harness.deadlines import deadline
from harness.delay_relay import Line, LineSpeed, delay_relay
from harness.processes import run_async

DEADLINE_S = deadline(60.0)


def test_bytes_take_a_line_one_after_the_other() -> None:
    line = Line(LineSpeed(delay_s=0.1, bytes_per_s=1000))
    assert line.take(100, now=5.0) == pytest.approx(5.2)
    assert line.take(200, now=5.0) == pytest.approx(5.4)
    assert line.take(100, now=9.0) == pytest.approx(9.2)
    assert line.taken == 400


def test_a_sender_waits_for_a_full_line() -> None:
    line = Line(LineSpeed(delay_s=0.1, bytes_per_s=1000))
    line.take(1050, now=0.0)
    assert line.blocked_s(now=0.0) == pytest.approx(1.0)
    assert line.blocked_s(now=1.1) == 0


def test_a_line_without_a_rate_only_delays() -> None:
    line = Line(LineSpeed(delay_s=0.1))
    assert line.take(1 << 30, now=2.0) == pytest.approx(2.1)
    assert line.blocked_s(now=2.0) == 0


@pytest.mark.parametrize(("delay_s", "rate"), [(-0.1, None), (0.1, 0.0)])
def test_impossible_lines_are_refused(delay_s: float, rate: float | None) -> None:
    with pytest.raises(ValueError, match="cannot have this speed"):
        LineSpeed(delay_s=delay_s, bytes_per_s=rate)


def test_every_byte_passes_and_takes_its_time() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S):
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            speed = LineSpeed(delay_s=0.02, bytes_per_s=4e6)
            line = delay_relay(lambda: asyncio.open_connection("127.0.0.1", port), speed)
            sent = bytes(range(256)) * 1000
            loop = asyncio.get_running_loop()
            async with server, line as (relay, up, down):
                reader, writer = await asyncio.open_connection("127.0.0.1", relay)
                began = loop.time()
                writer.write(sent)
                writer.write_eof()
                assert await reader.read() == sent
                # A round trip, and the bytes once through each direction at the same time.
                assert loop.time() - began >= 0.04 + len(sent) / 4e6
                assert up.taken == down.taken == len(sent)
                writer.close()

    run_async(test())
