"""Binds a gRPC server to a Unix socket, a TCP port, or both, and stops it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError

if TYPE_CHECKING:
    import grpc
    import grpc.aio

__all__ = [
    "SERVER_OPTIONS",
    "STOP_S",
    "Listening",
    "listen",
    "stop_blocking_server",
    "stop_server",
]


#: For every server: two processes must never share a port by chance.
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (("grpc.so_reuseport", 0),)

#: Seconds for a server's calls and connections to end after they were cancelled: those of a client
#: that reads nothing never do. Less than the grace period of the process.
STOP_S = 2.0

#: The maximum length of a socket's path in bytes, without the terminating zero.
_PATH_LIMIT = 107 if sys.platform == "linux" else 103


class Bindable(Protocol):
    """A gRPC server of any kind."""

    def add_insecure_port(self, address: str) -> int:
        """Binds; returns the port. Raises RuntimeError."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening:
    """The addresses of a server.

    Attributes:
      address: The address for clients: ``unix:/path`` if there is a socket, otherwise
        ``host:port``.
      shown: The address in the log line of Google's images, e.g. ``[::]:29001``, or the socket.
      port: 0 without TCP.
      socket: Empty without a Unix socket.
    """

    address: str
    shown: str
    port: int
    socket: str


def listen(
    server: Bindable,
    *,
    server_port: int | None,
    server_socket: str,
    default_port: int,
    bind_address: str = LOOPBACK,
) -> Listening:
    """Binds a server that was made with `SERVER_OPTIONS` and not started yet.

    A port of None means none with a socket, otherwise `default_port`.

    Raises:
      InvalidRequestError: The socket's path is too long.
      SharedPathwaysError: The port or socket cannot be bound.
    """
    port, path = 0, ""
    if server_socket:
        path = str(Path(server_socket).absolute())
        if len(os.fsencode(path)) > _PATH_LIMIT:
            raise InvalidRequestError(
                "--server_socket", path, f"a path of at most {_PATH_LIMIT} bytes"
            )
        _bind(server, f"unix:{path}")
        Path(path).chmod(0o600)
    if server_port is None and not path:
        server_port = default_port
    host = f"[{bind_address}]" if ":" in bind_address else bind_address
    if server_port is not None:
        port = _bind(server, f"{host}:{server_port}")
    return Listening(
        address=f"unix:{path}" if path else f"{host}:{port}",
        shown=f"[::]:{port}" if port else f"unix:{path}",
        port=port,
        socket=path,
    )


def _bind(server: Bindable, address: str) -> int:
    try:
        return server.add_insecure_port(address)
    except RuntimeError as error:
        raise SharedPathwaysError(
            f"cannot listen on {address}", hint="is it taken, or not an address of this machine?"
        ) from error


async def stop_server(server: grpc.aio.Server, grace_s: float = 0.0) -> None:
    """Stops a server and its calls, which have `grace_s` to end by themselves.

    A client that reads nothing does not receive the end of its calls either, and gRPC waits for
    that: such calls end with the process.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(grace_s + STOP_S):
            await server.stop(grace_s)


def stop_blocking_server(server: grpc.Server) -> None:
    """Stops a server of gRPC's blocking API and its calls, as `stop_server` does.

    (Not with `stop(None)`, which waits without a limit.)
    """
    server.stop(0).wait(STOP_S)
