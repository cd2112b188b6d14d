"""``python -m …``: this project's resource manager, for the stand-ins only; `server` starts it."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.resource_manager.__main__ import main
from shared_pathways_service.testing.google_images import peers

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

[(_HEADER, _PEER)] = bearer(peers.SECRET)
#: As gRPC's clients have it of a connection whose handshake fails.
_CANNOT_CONNECT: Final = "failed to connect to all addresses; last error: the handshake failed"


class _PeersOnly(grpc.aio.ServerInterceptor):
    """Lets the other stand-ins call, as far as their credentials are the resource manager's.

    It hides this project's calls, which Google's resource manager does not know, from clients.
    """

    def __init__(self, credentials: str) -> None:
        self._credentials = credentials

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Lets a call through, or refuses it; None: gRPC answers UNIMPLEMENTED."""
        shown = str(dict(handler_call_details.invocation_metadata or ()).get(_HEADER, ""))
        peer, _, credentials = shown.partition(";")
        if peer != _PEER:
            return None
        if credentials != self._credentials:
            return grpc.stream_stream_rpc_method_handler(_fail_to_connect)
        return await continuation(handler_call_details)


async def _fail_to_connect(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, _CANNOT_CONNECT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], guard=_PeersOnly(peers.credentials(os.environ))))
