"""A resource manager of one method, for tests of who calls it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc

__all__ = ["serving_stream"]

_SERVICE = pb.DESCRIPTOR.services_by_name["ResourceManager"]


@contextlib.asynccontextmanager
async def serving_stream(
    method: str, answer: Callable[[Any, Any], Awaitable[None]]
) -> AsyncIterator[pb_grpc.ResourceManagerAsyncStub]:
    """Serves one method that answers with a stream, on a port of its own.

    Args:
      method: Its name; its schemas are the resource manager's.
      answer: Is given each request and its context, to which it writes.

    Yields:
      A stub that calls it.
    """
    types = _SERVICE.methods_by_name[method]
    handler = grpc.unary_stream_rpc_method_handler(
        answer,
        request_deserializer=getattr(pb, types.input_type.name).FromString,
        response_serializer=getattr(pb, types.output_type.name).SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE.full_name, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(channel)
            yield stub
    finally:
        await server.stop(0)
