"""Begins connections with the proxy, for the far end."""

from __future__ import annotations

import socket
from collections.abc import Callable

__all__ = ["connector_of"]


def connector_of(target: str) -> Callable[[], socket.socket]:
    """Returns what begins to connect with ``HOST:PORT`` or ``unix:/PATH``.

    Reading and writing report how that ends.

    Raises:
      ValueError: The target is neither.
    """
    if target.startswith("unix:/"):
        return _connector(socket.AF_UNIX, target.removeprefix("unix:"))
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{target!r} is neither HOST:PORT nor unix:/PATH")
    host = host.removeprefix("[").removesuffix("]")
    return _connector(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, int(port)))


def _connector(
    family: socket.AddressFamily, address: str | tuple[str, int]
) -> Callable[[], socket.socket]:
    def connect() -> socket.socket:
        local = socket.socket(family, socket.SOCK_STREAM)
        local.setblocking(False)
        try:
            if family != socket.AF_UNIX:
                local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            local.connect(address)
        except OSError as error:
            # (A Unix socket whose backlog is full does not connect later, unlike one of TCP.)
            if isinstance(error, BlockingIOError) and family != socket.AF_UNIX:
                return local
            local.close()
            raise
        return local

    return connect
