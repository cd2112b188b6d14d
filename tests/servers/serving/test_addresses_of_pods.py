"""Servers of pods bind 0.0.0.0, and serve pods of both families: an IPv6-only cluster's as well."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from shared_pathways_service.metrics.http_server import serve_metrics
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS, listen, stop_server
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")

Server = Callable[[str], contextlib.AbstractAsyncContextManager[int]]


@contextlib.asynccontextmanager
async def a_grpc_server(address: str) -> AsyncIterator[int]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    bound = listen(server, server_port=0, server_socket="", default_port=0, bind_address=address)
    await server.start()
    yield bound.port
    await stop_server(server)


@contextlib.asynccontextmanager
async def metrics(address: str) -> AsyncIterator[int]:
    serving = await serve_metrics(list, address=address, port=0, token=None)
    yield int(serving.url.removesuffix("/metrics").rpartition(":")[2])
    await serving.close()


@contextlib.asynccontextmanager
async def far_end(address: str) -> AsyncIterator[int]:
    far = FarEnd(b"token", connector_of("127.0.0.1:1"))
    yield await far.start(address, 0)
    await far.close()


@pytest.mark.parametrize("server", [a_grpc_server, metrics, far_end])
def test_a_client_of_either_family_reaches_it(server: Server) -> None:
    async def reach() -> None:
        async with server("0.0.0.0") as port:
            for host in ("127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                await writer.wait_closed()

    asyncio.run(reach())
