"""Token authentication of gRPC calls to this project's servers.

A call carries the metadata ``authorization: Bearer TOKEN``. A token is stored in a file that only
its user can read, never in an argument, a variable or a log.
"""

from __future__ import annotations

import hmac
import os
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["TokenInterceptor", "bearer", "read_token", "shows"]

#: A handler for any messages.
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"

_HEADER = "authorization"
_SCHEME = "Bearer "
_SIZE_LIMIT = 4096
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read_token(path: str, *, field: str = "--token_file") -> str | None:
    """Reads the token of a server or of its client; None without a path.

    Raises:
      InvalidRequestError: The file is missing, accessible to others, or contains no token.
    """
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_SIZE_LIMIT + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidRequestError(field, path, f"a readable file ({reason})") from error
    if mode & _OTHERS:
        raise InvalidRequestError(
            field, path, "a file that only its user can read", hint=f"chmod 600 {path}"
        )
    text = data.strip()
    # A gRPC header must be able to carry it, and it must fit beside the other headers.
    if not text or len(data) > _SIZE_LIMIT or not all(33 <= byte <= 126 for byte in text):
        raise InvalidRequestError(field, path, "a file with one line of printable ASCII")
    return text.decode("ascii")


def bearer(token: str | None) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of a call to a server with this token; empty without one."""
    return () if token is None else ((_HEADER, _SCHEME + token),)


def shows(header: str, token: str | None) -> bool:
    """Returns whether an ``Authorization`` header has the token; without a token always."""
    return token is None or _is_same(header, (_SCHEME + token).encode())


def _is_same(shown: str | bytes, expected: bytes) -> bool:
    data = shown if isinstance(shown, bytes) else shown.encode(errors="replace")
    return hmac.compare_digest(data, expected)


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Answers calls without a valid token with UNAUTHENTICATED.

    A call with a lesser token to a method that it does not permit gets PERMISSION_DENIED.

    Args:
      token: The token that permits all methods.
      open_methods: Paths of methods that need no token.
      lesser: Other tokens, each with the paths of the methods that it permits.
    """

    def __init__(
        self,
        token: str,
        *,
        open_methods: Collection[str] = (),
        lesser: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self._expected = (_SCHEME + token).encode()
        self._open = frozenset(open_methods)
        self._lesser = [
            ((_SCHEME + other).encode(), frozenset(methods))
            for other, methods in (lesser or {}).items()
        ]

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Passes a call on, or replaces its handler by a refusal."""
        if handler_call_details.method in self._open:
            return await continuation(handler_call_details)
        shown = dict(handler_call_details.invocation_metadata or ()).get(_HEADER, "")
        if _is_same(shown, self._expected):
            return await continuation(handler_call_details)
        for expected, methods in self._lesser:
            if _is_same(shown, expected):
                if handler_call_details.method in methods:
                    return await continuation(handler_call_details)
                return _REFUSE_LESSER
        return _REFUSE_WRONG if shown else _REFUSE_MISSING


def _refusal(code: grpc.StatusCode, details: str) -> _Handler:
    async def refuse(_requests: object, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        await context.abort(code, details)

    # A stream's handler answers before any request arrives; a unary caller sees no difference.
    return grpc.stream_stream_rpc_method_handler(refuse)


_REFUSE_MISSING = _refusal(
    grpc.StatusCode.UNAUTHENTICATED, "no token: send the metadata 'authorization: Bearer TOKEN'"
)
_REFUSE_WRONG = _refusal(grpc.StatusCode.UNAUTHENTICATED, "the token is not this service's")
_REFUSE_LESSER = _refusal(
    grpc.StatusCode.PERMISSION_DENIED, "the token is a tenant's: this is for the service's own"
)
