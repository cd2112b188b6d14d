"""``python -m …``: this project's resource manager, for the stand-ins only; `server` starts it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.resource_manager.__main__ import main
from shared_pathways_service.testing.google_images import peers

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class _PeersOnly(grpc.aio.ServerInterceptor):
    """Hides this project's calls, which Google's resource manager does not know, from clients."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Lets calls of the stand-ins through; gRPC answers UNIMPLEMENTED to all others."""
        shown = dict(handler_call_details.invocation_metadata or ())
        if shown.items() >= set(bearer(peers.SECRET)):
            return await continuation(handler_call_details)
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], guard=_PeersOnly()))
