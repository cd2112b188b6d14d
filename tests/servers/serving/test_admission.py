"""What becomes of the calls of a client that reads nothing, not even what ends them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.servers.resource_manager.call_errors import refusing
from shared_pathways_service.servers.resource_manager.outbox import Outbox
from shared_pathways_service.servers.serving.admission import Admission, CallOptions
from shared_pathways_service.testing.attacks.peer import ENDED, Peer

#: More than a connection holds for one who does not read it.
LARGE = bytes(8 << 20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds(CallOptions):
    """What is given at most."""

    max_calls: int = 100
    max_calls_per_host: int = 100
    request_timeout_s: float = DEADLINE_S
    slow_reader_s: float = 0.5


class Ends(grpc.aio.ServerInterceptor):
    """Knows when calls of a method have ended for the server."""

    def __init__(self) -> None:
        self.of: dict[str, asyncio.Event] = {
            "/x/Large": asyncio.Event(),
            "/x/Small": asyncio.Event(),
            "/x/Followed": asyncio.Event(),
        }

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)

        async def run(requests: object, context: object) -> None:
            try:
                await handler.stream_stream(requests, context)
            finally:
                self.of[handler_call_details.method].set()

        return grpc.stream_stream_rpc_method_handler(run)


class Served:
    """A server with a method of a large answer, one of a small one, and one that says too much."""

    def __init__(self, address: str, bounds: Bounds) -> None:
        self.admission = Admission(bounds)
        self.address = address
        self.left = {name: asyncio.Event() for name in ("Large", "Small", "Followed")}
        self.ends = Ends()
        self._server = grpc.aio.server(interceptors=[self.ends, self.admission])
        methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Large": grpc.unary_stream_rpc_method_handler(_method(LARGE, self.left["Large"])),
            "Small": grpc.unary_stream_rpc_method_handler(_method(b"small", self.left["Small"])),
            "Followed": grpc.unary_stream_rpc_method_handler(_overflowing(self.left["Followed"])),
        }
        found = grpc.method_handlers_generic_handler("x", methods)
        self._server.add_generic_rpc_handlers((found,))
        self._server.add_insecure_port(address)

    @contextlib.asynccontextmanager
    async def deaf(self) -> AsyncIterator[Peer]:
        """A client that takes any answer, and reads none; its first one fills the connection."""
        await self._server.start()
        try:
            with Peer(self.address) as peer:
                peer.want_all()
                peer.finish(peer.open("/x/Large"))
                async with asyncio.timeout(DEADLINE_S):
                    await self.left["Large"].wait()
                yield peer
            # Its connection is gone, and so are its calls.
            async with asyncio.timeout(DEADLINE_S):
                await self.ends.of["/x/Large"].wait()
                while self.admission.open:
                    await asyncio.sleep(0.01)
        finally:
            await self._server.stop(None)


def _overflowing(left: asyncio.Event) -> Callable[[bytes, Any], Awaitable[None]]:
    """More is put than may wait while the first message is on its way."""

    @refusing
    async def method(_self: None, _request: bytes, context: Any) -> None:
        outbox: Outbox[bytes] = Outbox(limit=1)

        async def write(message: bytes) -> None:
            for _ in range(2):
                outbox.put(b"more")
            await context.write(message)

        outbox.put(b"first")
        try:
            await outbox.send(write)
        finally:
            left.set()

    return functools.partial(method, None)


def _method(answer: bytes, left: asyncio.Event) -> Callable[[bytes, Any], Awaitable[None]]:
    async def method(_request: bytes, context: Any) -> None:
        try:
            await context.write(answer)
        finally:
            left.set()

    return method


async def hears_of_ends(peer: Peer) -> None:
    """It reads again, and hears how both its calls ended."""
    assert await asyncio.to_thread(peer.wait, ENDED, times=2, timeout_s=DEADLINE_S)


def served_by(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)
    # gRPC's thread ends with its last server, which what was raised refers to.
    gc.collect()


def errors_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("reads_again", [True, False])
def test_a_call_whose_metadata_is_not_taken_is_given_up(
    own_directories: Path, caplog: pytest.LogCaptureFixture, reads_again: bool
) -> None:
    async def run() -> None:
        served = Served(f"unix:{own_directories / 'rm'}", Bounds())
        async with served.deaf() as peer, asyncio.timeout(DEADLINE_S):
            peer.finish(peer.open("/x/Small"))
            await served.left["Small"].wait()
            assert served.admission.open == 2, "they count as long as their client is there"
            if reads_again:
                await hears_of_ends(peer)

    served_by(run())
    assert not errors_in(caplog)


def test_a_refusal_that_is_not_taken_ends_its_call(
    own_directories: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        served = Served(f"unix:{own_directories / 'rm'}", Bounds(max_calls=1))
        async with served.deaf() as peer, asyncio.timeout(DEADLINE_S):
            peer.finish(peer.open("/x/Small"))
            await served.ends.of["/x/Small"].wait()
            assert not served.left["Small"].is_set(), "it was refused"
            assert served.admission.open == 1
            await hears_of_ends(peer)

    served_by(run())
    assert not errors_in(caplog)


@pytest.mark.parametrize("reads_again", [True, False])
def test_an_overflow_before_the_metadata_is_reported(
    own_directories: Path, caplog: pytest.LogCaptureFixture, reads_again: bool
) -> None:
    async def run() -> None:
        served = Served(f"unix:{own_directories / 'rm'}", Bounds(slow_reader_s=2.0))
        async with served.deaf() as peer, asyncio.timeout(DEADLINE_S):
            peer.finish(peer.open("/x/Followed"))
            await served.left["Followed"].wait()
            assert served.admission.open == 2
            if reads_again:
                await hears_of_ends(peer)

    served_by(run())
    assert not errors_in(caplog)
