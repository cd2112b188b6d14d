"""Heads of a service that cannot be reached, and links to their resource manager."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
from aiohttp import web

from shared_pathways_service.errors import (
    AccessDenied,
    SharedPathwaysError,
)
from shared_pathways_service.homes.kubernetes.manager_link import ManagerLink
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.grpc_errors import abort
from tests.cluster_state.services import SERVICE, head
from tests.kube.nowhere import NowhereApi
from tests.tunnel.api_server import ApiServer

# (Errors are made anew: one that was raised holds on to where it was.)


def denied() -> SharedPathwaysError:
    return AccessDenied("not you", verb="create", resource="pods/portforward")


def gone() -> SharedPathwaysError:
    """Returns what a kubelet says of a pod that has ended and is still there."""
    return ApiError("cannot forward: pod not found", status=500)


class ScriptedApi(NowhereApi):
    """Knows one pod, which is the head, and answers port-forwards by pod."""

    def __init__(self, answers: Mapping[str, Callable[[], SharedPathwaysError]]) -> None:
        super().__init__()
        self._answers = answers
        self.dialled: list[str] = []

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"items": [head()]}

    async def upgrade(self, path: str, **_: Any) -> aiohttp.ClientResponse:
        self.dialled.append(path)
        error = self._answers[path]()
        raise error


class MovingApi(NowhereApi):
    """Answers port-forwards one after the other: an error, or with None, the way to a server."""

    def __init__(self, *answers: Callable[[], SharedPathwaysError] | None, ways: ApiServer) -> None:
        super().__init__()
        self._answers = list(answers)
        self._ways = ways

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"items": [head()]}

    async def upgrade(
        self, path: str, *, headers: Mapping[str, str], **_: Any
    ) -> aiohttp.ClientResponse:
        answer = self._answers.pop(0)
        if answer is None:
            return await self._ways.dial(headers)
        raise answer()


class Manager(pb_grpc.ResourceManagerServicer):
    """Tells how things stand; lets nobody listen, or keeps who listens without a word."""

    def __init__(self, refusal: SharedPathwaysError | None = None) -> None:
        self.asked = asyncio.Event()
        self._refusal = refusal

    async def GetStatus(  # noqa: N802
        self, _request: object, _context: Any
    ) -> pb.GetStatusResponse:
        return pb.GetStatusResponse(state="serving")

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, _request: object, context: Any
    ) -> None:
        self.asked.set()
        if self._refusal is not None:
            await abort(context, self._refusal)
        await asyncio.Event().wait()


class Pod:
    """The head's port: each port-forward to it reaches the server, until it is cut."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self.cut = asyncio.Event()

    async def forward(self, way: web.WebSocketResponse) -> None:
        """Is a behaviour of an `ApiServer`."""
        reader, writer = await asyncio.open_unix_connection(self._socket)

        async def up() -> None:
            async for message in way:
                writer.write(message.data[1:])

        async def down() -> None:
            while data := await reader.read(1 << 16):
                await way.send_bytes(b"\0" + data)

        tasks = [asyncio.create_task(one) for one in (up(), down(), self.cut.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.cut.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()
            await way.close()


@contextlib.asynccontextmanager
async def serving(manager: Manager, directory: Path) -> AsyncIterator[tuple[ApiServer, Pod]]:
    """Serves a manager, at the end of a way of port-forwards."""
    socket = directory / "s"
    server = grpc.aio.server()
    pb_grpc.add_ResourceManagerServicer_to_server(manager, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    pod = Pod(socket)
    ways = ApiServer(pod.forward)
    try:
        async with ways.serve(None):
            yield ways, pod
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def link(
    api: KubeApi, directory: Path, pod: str, *, listening: str = "ada"
) -> AsyncIterator[ManagerLink]:
    made = ManagerLink(api, SERVICE, runtime_dir=directory / "r", head=pod)
    await made.open()
    if listening:
        made.listen(listening)
    try:
        yield made
    finally:
        await made.close()


async def until_answered(made: ManagerLink) -> str:
    """Asks until the channel has noticed that its connection is gone, and has another one."""
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return (await made.status()).state
