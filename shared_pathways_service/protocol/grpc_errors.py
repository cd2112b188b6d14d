"""Translates between gRPC statuses and this package's errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from shared_pathways_service import errors
from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["abort", "code_of", "error_of"]

#: Trailing metadata with the whole error, so that no field is lost.
_TRAILER = "sps-error-bin"
# Headers are limited to 8 KiB by default; longer errors are sent as code and text.
_TRAILER_LIMIT = 4096

#: Other classes have the code of their nearest base.
_CODE_OF: dict[type[SharedPathwaysError], grpc.StatusCode] = {
    SharedPathwaysError: grpc.StatusCode.UNKNOWN,
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PreflightError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AccessDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.ServiceNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ServiceNotReady: grpc.StatusCode.UNAVAILABLE,
    errors.CapacityError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.PlacementTimeout: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ProxyFailed: grpc.StatusCode.ABORTED,
    errors.TunnelError: grpc.StatusCode.UNAVAILABLE,
    errors.SliceLost: grpc.StatusCode.DATA_LOSS,
    errors.ConnectionClosed: grpc.StatusCode.CANCELLED,
    errors.CleanupError: grpc.StatusCode.INTERNAL,
}


def _invalid(message: str) -> SharedPathwaysError:
    return errors.InvalidRequestError("request", "", "", message=message)


#: For statuses without the trailer, which come from another version or from gRPC itself.
_ERROR_OF: dict[grpc.StatusCode, Callable[[str], SharedPathwaysError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: _invalid,
    grpc.StatusCode.OUT_OF_RANGE: _invalid,
    grpc.StatusCode.UNAUTHENTICATED: errors.AccessDenied,
    grpc.StatusCode.PERMISSION_DENIED: errors.AccessDenied,
    grpc.StatusCode.UNAVAILABLE: errors.ServiceNotReady,
    grpc.StatusCode.NOT_FOUND: errors.ServiceNotFound,
    grpc.StatusCode.UNIMPLEMENTED: errors.ServiceNotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.PreflightError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.CapacityError,
    grpc.StatusCode.DATA_LOSS: errors.SliceLost,
    grpc.StatusCode.CANCELLED: errors.ConnectionClosed,
}


def code_of(error: SharedPathwaysError) -> grpc.StatusCode:
    """Returns the status code that stands for an error."""
    return next(_CODE_OF[cls] for cls in type(error).__mro__ if cls in _CODE_OF)


async def abort(
    context: grpc.aio.ServicerContext[Any, Any],
    error: SharedPathwaysError,
    code: grpc.StatusCode | None = None,
) -> NoReturn:
    """Ends a call with an error; `code` may be more specific than `code_of`."""
    data = json.dumps(error.to_json()).encode()
    trailer = ((_TRAILER, data),) if len(data) <= _TRAILER_LIMIT else ()
    await context.abort(code or code_of(error), str(error), trailer)
    raise AssertionError("abort raises")


def error_of(failed: grpc.RpcError, *, service: str, address: str) -> SharedPathwaysError:
    """Converts a call's failure to an error of this package; raise it `from` the failure.

    `service` and `address` are for its message.
    """
    trailer: Any = failed.trailing_metadata() or ()
    for key, value in trailer:
        if key == _TRAILER:
            try:
                return errors.from_json(json.loads(value))
            except (ValueError, TypeError, KeyError, AttributeError):
                break
    code, details = failed.code(), failed.details() or ""
    make = _ERROR_OF.get(code, SharedPathwaysError)
    return make(f"{service} at {address}: {code.name}: {details}")
