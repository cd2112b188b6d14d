"""A relay whose connections outlive their WebSockets, before the stand-in of an API server."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.events.session import LinkDialFailed, LinkLost, LinkResumed
from shared_pathways_service.tunnel.relay import FailureKind
from tests.tunnel.api_server import hang_up, says
from tests.tunnel.resumable_rig import Rig, a_rig

DEADLINE_S = deadline(120.0)


@pytest.fixture(params=["plain", "TLS"])
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the API server's certificates go; None: it has none."""
    return None if request.param == "plain" else tmp_path


def run(root: Path, certificates: Path | None, test: Callable[[Rig], Awaitable[None]]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S), a_rig(root, certificates) as rig:
            await test(rig)

    run_async(with_deadline())


async def both_carriers(rig: Rig) -> None:
    """Waits until there are two: a second one that is being dialled outlives a cut."""
    while rig.relay.link_counters.carriers < 2:
        await asyncio.sleep(0.01)


async def exchange(rig: Rig, data: bytes, *, cut_each: int = 0) -> None:
    """Sends all of it through the pod and back; cuts WebSockets after each so many bytes."""
    reader, writer = await rig.connect()
    received = hashlib.sha256()

    async def receive() -> None:
        count = cut_at = 0
        while count < len(data):
            piece = await reader.read(1 << 16)
            assert piece
            received.update(piece)
            count += len(piece)
            if cut_each and count >= cut_at:
                cut_at = count + cut_each
                rig.pod.cut()

    receiving = asyncio.create_task(receive())
    for start in range(0, len(data), 1 << 16):
        writer.write(data[start : start + (1 << 16)])
        await writer.drain()
    await receiving
    assert received.digest() == hashlib.sha256(data).digest()
    writer.close()


def test_bytes_pass_while_websockets_are_cut(
    own_directories: Path, certificates: Path | None
) -> None:
    data = random.Random(5).randbytes(8_000_000)

    async def test(rig: Rig) -> None:
        await exchange(rig, data, cut_each=500_000)
        assert len(rig.server.dials) > 10
        counters = rig.relay.counters
        assert (counters.sent_bytes, counters.received_bytes) == (len(data), len(data))
        assert counters.opened == 1
        assert rig.failures == []

    run(own_directories, certificates, test)


def test_a_loss_is_reported_with_each_failed_dial_and_its_end(
    own_directories: Path, certificates: Path | None
) -> None:
    async def test(rig: Rig) -> None:
        await exchange(rig, b"before")
        await both_carriers(rig)
        # (The sidecar is away, the API server is not: the error comes on the error channel.)
        rig.server.answers = [says("connect: connection refused")]
        rig.pod.cut()
        await rig.until(lambda: rig.kinds().count(LinkDialFailed) >= 3)
        assert rig.kinds()[0] is LinkLost
        failed = [event for event in rig.events if isinstance(event, LinkDialFailed)]
        assert [event.attempt for event in failed] == list(range(1, 1 + len(failed)))
        assert "connection refused" in (failed[-1].reason or "")
        assert rig.relay.link_counters.losses == 1
        assert rig.relay.link_counters.carriers == 0
        rig.server.answers = [rig.pod.forward]
        await rig.until(lambda: rig.kinds()[-1] is LinkResumed)
        resumed = rig.events[-1]
        assert isinstance(resumed, LinkResumed)
        assert resumed.attempts >= 3
        await both_carriers(rig)
        assert rig.relay.counters.redials == rig.relay.link_counters.failed_dials
        await exchange(rig, b"after")
        assert rig.failures == []

    run(own_directories, certificates, test)


@pytest.mark.parametrize("breaks", ["one", "both"])
def test_expired_credentials_are_waited_for(
    own_directories: Path, certificates: Path | None, breaks: str
) -> None:
    async def test(rig: Rig) -> None:
        await exchange(rig, b"before")
        await both_carriers(rig)
        rig.server.answers = [401]
        before = len(rig.server.dials)
        if breaks == "one":
            hang_up(rig.pod.open.pop())
        else:
            rig.pod.cut()
        while len(rig.server.dials) < before + 3:
            await asyncio.sleep(0.01)
        assert rig.failures == []
        rig.server.answers = [rig.pod.forward]
        await exchange(rig, b"after")
        assert rig.failures == []

    run(own_directories, certificates, test)


@pytest.mark.parametrize("status", [403, 404])
def test_a_final_answer_to_a_dial_ends_the_relay(
    own_directories: Path, certificates: Path | None, status: int
) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        await both_carriers(rig)
        rig.server.answers = [status]
        rig.pod.cut()
        await rig.until(lambda: bool(rig.failures))
        (failure,) = rig.failures
        assert failure.kind is FailureKind.REFUSED
        assert failure.is_final
        assert str(status) in str(failure.error)
        assert rig.relay.link_counters.failed_dials >= 1
        assert rig.relay.counters.redials == 0
        assert await reader.read() == b""
        writer.close()
        # Later connections are closed at once.
        reader, writer = await rig.connect()
        writer.write(b"x")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    run(own_directories, certificates, test)


def test_the_death_of_the_pod_ends_every_connection(
    own_directories: Path, certificates: Path | None
) -> None:
    async def test(rig: Rig) -> None:
        reader, writer = await rig.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        rig.relay.pod_died("it was evicted")
        assert await reader.read() == b""
        (failure,) = rig.failures
        assert failure.kind is FailureKind.POD_DIED
        writer.close()

    run(own_directories, certificates, test)
