"""Host buffers are looked up from a real gRPC server, and no lookup delays JAX for long."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from harness.deadlines import deadline
from harness.patience import patience
from harness.processes import run_async
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.tunnel.link.buffer_lookups import BufferLookups
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.early_answers import LARGEST_BYTES
from shared_pathways_service.tunnel.link.http2_frames import FrameType, Part

SESSION = 9
DEADLINE_S = deadline(60.0)
MISSING, SLOW, SPLIT = 404, 405, 406


async def serve(request: bytes, context: Any) -> AsyncIterator[bytes]:
    """Answers with as many bytes as the handle says."""
    wanted = proxy_pb2.GrpcHostBufferLookupRequest.FromString(request)
    assert wanted.session_id == SESSION
    if wanted.handle == MISSING:
        await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such buffer")
    if wanted.handle == SLOW:
        await asyncio.sleep(DEADLINE_S)
    if wanted.handle == SPLIT:
        for part in (b"one ", b"two"):
            yield proxy_pb2.GrpcHostBufferLookupResponse(data=part).SerializeToString()
        return
    data = b"v" * wanted.handle
    yield proxy_pb2.GrpcHostBufferLookupResponse(data=data).SerializeToString()


def run(test: Callable[[BufferLookups], Awaitable[None]], *, is_served: bool = True) -> None:
    async def with_server() -> None:
        async with asyncio.timeout(DEADLINE_S), contextlib.AsyncExitStack() as stack:
            if is_served:
                server = grpc.aio.server()
                method: Any = grpc.unary_stream_rpc_method_handler(serve)
                handler: Any = grpc.method_handlers_generic_handler
                server.add_generic_rpc_handlers(
                    (handler(ifrt.SERVICE, {"HostBufferLookup": method}),)
                )
                port = server.add_insecure_port("127.0.0.1:0")
                await server.start()
                stack.push_async_callback(server.stop, None)
            else:
                taken = stack.enter_context(socket.socket())
                taken.bind(("127.0.0.1", 0))  # and does not listen
                port = taken.getsockname()[1]
            lookups = BufferLookups(connector_of(f"127.0.0.1:{port}"))
            stack.callback(lookups.close)
            await test(lookups)

    run_async(with_server())


async def look_up(lookups: BufferLookups, *handles: int) -> list[bytes | None]:
    futures: list[asyncio.Future[bytes | None]] = [
        asyncio.get_running_loop().create_future() for _ in handles
    ]
    for handle, future in zip(handles, futures, strict=True):
        # Only what is slow on purpose is given up, however slow this machine is.
        with patience(1 if handle == SLOW else 10):
            lookups.look_up(SESSION, handle, future.set_result)
    return await asyncio.gather(*futures)


def test_small_buffers_are_found() -> None:
    async def test(lookups: BufferLookups) -> None:
        sizes = (0, 1, 20_000, LARGEST_BYTES)
        assert await look_up(lookups, *sizes) == [b"v" * size for size in sizes]
        assert await look_up(lookups, SPLIT) == [b"one two"]

    run(test)


def test_one_connection_serves_many_lookups() -> None:
    async def test(lookups: BufferLookups) -> None:
        for _ in range(40):
            assert await look_up(lookups, 100_000, 5) == [b"v" * 100_000, b"v" * 5]

    run(test)


def test_large_missing_and_slow_buffers_are_given_up() -> None:
    async def test(lookups: BufferLookups) -> None:
        found = await look_up(lookups, LARGEST_BYTES + 1, MISSING, SLOW, 3_000_000, 7)
        assert found == [None, None, None, None, b"v" * 7]

    run(test)


def test_more_lookups_than_allowed_are_refused_at_once() -> None:
    async def test(lookups: BufferLookups) -> None:
        found = await look_up(lookups, *[1] * 40)
        assert found == [b"v"] * 32 + [None] * 8

    run(test)


def test_lookups_end_without_a_server_and_by_closing() -> None:
    async def refused(lookups: BufferLookups) -> None:
        assert await look_up(lookups, 1, 2) == [None, None]
        assert await look_up(lookups, 3) == [None]

    async def closed(lookups: BufferLookups) -> None:
        assert await look_up(lookups, 5) == [b"v" * 5]
        waiting = asyncio.create_task(look_up(lookups, SLOW, SLOW))
        await asyncio.sleep(0)
        lookups.close()
        assert await waiting == [None, None]
        assert await look_up(lookups, 6) == [None]

    run(refused, is_served=False)
    run(closed)


def test_a_proxy_that_is_too_slow_is_not_asked_again() -> None:
    async def test(lookups: BufferLookups) -> None:
        assert await look_up(lookups, SLOW, SLOW) == [None, None]
        # One that answers in between begins the count anew.
        assert await look_up(lookups, 5) == [b"v" * 5]
        assert await look_up(lookups, SLOW, SLOW, SLOW) == [None] * 3
        found: list[bytes | None] = []
        lookups.look_up(SESSION, 5, found.append)
        assert found == [None]

    run(test)


def test_a_proxy_that_ends_its_connection_in_order_is_connected_again() -> None:
    async def test(lookups: BufferLookups) -> None:
        assert await look_up(lookups, 5) == [b"v" * 5]
        lookups._take(Part(FrameType.GOAWAY, 0, 0, b"", b"", is_last=True))
        # (One that comes before the end is noticed is given up.)
        assert await look_up(lookups, 6) == [None]
        assert await look_up(lookups, 7) == [b"v" * 7]

    run(test)
