"""Classifies failures of calls to a resource manager, and translates them to our errors."""

from __future__ import annotations

import dataclasses
from types import MappingProxyType

import grpc

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol.grpc_errors import error_of

__all__ = ["IS_FINAL", "Refusal", "is_final", "reason_of", "translate"]

#: Whether another try would fail as well, for each status code.
IS_FINAL = MappingProxyType(
    {
        # gRPC's own, when a connection breaks or cannot be made.
        grpc.StatusCode.UNAVAILABLE: False,
        grpc.StatusCode.CANCELLED: False,
        grpc.StatusCode.DEADLINE_EXCEEDED: False,
        # In the asyncio API, also a refusal that crossed a message of ours.
        grpc.StatusCode.INTERNAL: False,
        # An exception in the server.
        grpc.StatusCode.UNKNOWN: False,
        # A newer stream of the same process took over.
        grpc.StatusCode.ABORTED: False,
        # Too many calls for now, or this client read too slowly.
        grpc.StatusCode.RESOURCE_EXHAUSTED: False,
        # The request is not valid, or not for this server.
        grpc.StatusCode.INVALID_ARGUMENT: True,
        grpc.StatusCode.OUT_OF_RANGE: True,
        grpc.StatusCode.NOT_FOUND: True,
        grpc.StatusCode.DATA_LOSS: True,
        grpc.StatusCode.UNIMPLEMENTED: True,
        # No common version of the protocol, or another process has taken this one's place.
        grpc.StatusCode.FAILED_PRECONDITION: True,
        grpc.StatusCode.ALREADY_EXISTS: True,
        # The token is missing or wrong.
        grpc.StatusCode.UNAUTHENTICATED: True,
        grpc.StatusCode.PERMISSION_DENIED: True,
    }
)

_SERVICE = "the resource manager"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refusal:
    """A final answer to a stream.

    Attributes:
      kind: The status code's name in lower case.
      message: The server's message, unchanged.
      error: Our error for it.
    """

    kind: str
    message: str
    error: SharedPathwaysError


def is_final(error: grpc.RpcError) -> bool:
    """Returns whether another try would fail as well."""
    return IS_FINAL[error.code()]


def reason_of(error: grpc.RpcError) -> str:
    """Returns the status code's name and the server's message, for a log line."""
    return f"{error.code().name}: {error.details()}"


def translate(
    error: grpc.RpcError, address: str, *, service: str = _SERVICE
) -> SharedPathwaysError:
    """Returns our error for a failed call; raise it `from` that one."""
    return error_of(error, service=service, address=address)
