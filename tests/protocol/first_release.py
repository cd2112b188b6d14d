"""The first release's own protocols, version 1: its messages and calls, from the kept descriptors.

A field or a call that came later is unknown here, so what is said with these the first release
could have said, and what is read is what it would have read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory

from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.protocol.grpc_errors import _TRAILER
from tests.protocol.kept import DIRECTORY, kept, methods

__all__ = ["VERSION", "call", "handlers", "message", "refuse", "versions"]

VERSION = 1
_PACKAGE = "shared_pathways_service.v1"
_FILES = kept(DIRECTORY / "0.1.0.binpb")
_METHODS = methods(_FILES)
_POOL = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(
    descriptor_pool.Default().FindFileByName("google/protobuf/struct.proto").serialized_pb
)
for _file in _FILES.file:
    _POOL.Add(_file)


def message(name: str, /, **fields: Any) -> Any:
    """Returns a message; a field that came later raises ValueError."""
    return _class_of(f".{_PACKAGE}.{name}")(**fields)


def versions(low: int = VERSION, high: int = VERSION) -> Any:
    """Returns a range of versions; by default the one that the first release speaks."""
    return message("VersionRange", min=low, max=high)


def call(channel: grpc.Channel, name: str) -> Any:
    """Returns a call as a stub has it.

    Args:
      channel: To the server.
      name: e.g. ``Supervisor/Join``.
    """
    method = _METHODS[f"{_PACKAGE}.{name}"]
    make = getattr(channel, _arity(method))
    return make(
        f"/{_PACKAGE}.{name}",
        request_serializer=_class_of(method.input_type).SerializeToString,
        response_deserializer=_class_of(method.output_type).FromString,
    )


def handlers(
    service: str,
    behaviours: Mapping[str, Callable[..., Any]],
    on_message: Callable[[Any], object] = lambda _message: None,
) -> grpc.GenericRpcHandler:
    """Returns the handlers of a service, for calls by name; others are unimplemented.

    Args:
      service: The service's name.
      behaviours: The calls.
      on_message: Gets each message, also one that its call does not get, as the client has
        cancelled the call meanwhile.
    """

    def reading(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        def read(data: bytes) -> Any:
            found = parse(data)
            on_message(found)
            return found

        return read

    found = {}
    for name, behaviour in behaviours.items():
        method = _METHODS[f"{_PACKAGE}.{service}/{name}"]
        make = getattr(grpc, f"{_arity(method)}_rpc_method_handler")
        found[name] = make(
            behaviour,
            request_deserializer=reading(_class_of(method.input_type).FromString),
            response_serializer=_class_of(method.output_type).SerializeToString,
        )
    return grpc.method_handlers_generic_handler(f"{_PACKAGE}.{service}", found)


def refuse(context: grpc.ServicerContext, theirs: tuple[int, int], ours: tuple[int, int]) -> None:
    """Ends a call, as a server does that speaks none of the caller's versions; else does nothing.

    Args:
      context: The call's.
      theirs: The versions that the caller speaks.
      ours: Those that the server speaks.
    """
    if theirs[0] <= ours[1] and ours[0] <= theirs[1]:
        return
    client, service = (f"{low} to {high}" for low, high in (theirs, ours))
    error = VersionSkew(
        f"no common protocol version: the client speaks {client}, the service {service}",
        client=client,
        service=service,
    )
    context.set_trailing_metadata(((_TRAILER, json.dumps(error.to_json()).encode()),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))


def _class_of(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name.removeprefix(".")))


def _arity(method: Any) -> str:
    sides = (method.client_streaming, method.server_streaming)
    return "_".join("stream" if side else "unary" for side in sides)
