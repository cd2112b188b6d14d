"""``python -m …``: this project's resource manager, for the stand-ins only; `server` starts it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.resource_manager.__main__ import main
from shared_pathways_service.testing.google_images import peers
from shared_pathways_service.testing.google_images.log_texts import PUBLISHED

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

[(_HEADER, _PEER)] = bearer(peers.SECRET)
_TYPES_FLAG: Final = "--instance_type="
_WORKERS_METHOD: Final = "/shared_pathways_service.v1.ResourceManager/WorkerSession"
_NO_MATCH: Final = PUBLISHED["a worker of another type"]
#: Any; the images number their jobs.
_JOB: Final = 1
#: The text of gRPC's clients for a connection whose handshake failed.
_CANNOT_CONNECT: Final = "failed to connect to all addresses; last error: the handshake failed"


class _PeersOnly(grpc.aio.ServerInterceptor):
    """Admits only stand-ins with the expected credentials and type, after the delay they ask for.

    Hides this project's calls, which Google's resource manager does not know, from clients.
    """

    def __init__(self, credentials: str, types: Collection[str]) -> None:
        self._credentials = credentials
        self._types = types

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Passes a call on, or refuses it; None: gRPC answers UNIMPLEMENTED."""
        shown = str(dict(handler_call_details.invocation_metadata or ()).get(_HEADER, ""))
        peer, *described = shown.split(";")
        if peer != _PEER:
            return None
        credentials, kind, placement_s = described
        if credentials != self._credentials:
            return grpc.stream_stream_rpc_method_handler(_fail_to_connect)
        if handler_call_details.method == _WORKERS_METHOD and kind not in self._types:
            return grpc.stream_stream_rpc_method_handler(_leave_out)
        await asyncio.sleep(float(placement_s))
        return await continuation(handler_call_details)


async def _fail_to_connect(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, _CANNOT_CONNECT)


async def _leave_out(_requests: object, _context: grpc.aio.ServicerContext[Any, Any]) -> None:
    glog("W", _NO_MATCH.text.format(job=_JOB))
    # The worker keeps running, but is ignored.
    await asyncio.Event().wait()


def _types(argv: list[str]) -> set[str]:
    words = [word.removeprefix(_TYPES_FLAG) for word in argv if word.startswith(_TYPES_FLAG)]
    return {kind.strip() for word in words for kind in word.split(",")}


if __name__ == "__main__":
    _guard = _PeersOnly(peers.credentials(os.environ), _types(sys.argv))
    sys.exit(main(sys.argv[1:], guard=_guard))
