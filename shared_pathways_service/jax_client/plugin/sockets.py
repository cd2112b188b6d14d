"""Finds and closes the sockets of this process to one peer, without their owner's help.

JAX's client cannot be closed: it ends when it is no longer referenced, and one forgotten variable
keeps it alive. Shutting down its sockets ends it nevertheless.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Peer", "connected", "count", "peer_at", "replace", "shut_down"]

#: A peer in the form of connected sockets: a path, or the host's address and a port.
Peer = str | tuple[str, int]

_POLL_S = 0.005


def peer_at(address: str, timeout: float) -> Peer:
    """Returns the form in which connected sockets name the server at an address.

    It connects to find out: a path may contain a link, and the server is known by the path that it
    was given. Raises OSError if the connection fails.
    """
    with connected(address, timeout) as connection:
        return _peer_of(connection)


def connected(address: str, timeout: float) -> socket.socket:
    """Returns a connection to ``unix:/path`` or ``host:port``; it keeps the timeout."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(address.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout)


def count(peer: Peer) -> int:
    """Returns the number of sockets connected to the peer."""
    return sum(1 for _ in _connected(peer))


def shut_down(peer: Peer, timeout: float) -> bool:
    """Ends all connections to the peer; returns whether their owners have closed them in time.

    The owners keep the descriptors. New connections in this time are ended, too.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = 0
        for connection in _connected(peer):
            left += 1
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if not left or time.monotonic() > deadline:
            return not left
        time.sleep(_POLL_S)


def replace(peer: Peer) -> None:
    """Replaces this process's descriptors of connections to the peer.

    In a forked child: the connections belong to the parent, and stay open.
    """
    near, far = socket.socketpair()
    far.close()
    with near:
        for entry in list(Path("/dev/fd").iterdir()):
            with contextlib.suppress(OSError):
                with _duplicate(int(entry.name)) as connection:
                    leads_there = _peer_of(connection) == peer
                if leads_there:
                    os.dup2(near.fileno(), int(entry.name), inheritable=False)


def _connected(peer: Peer) -> Iterator[socket.socket]:
    # A duplicate of each: the number may be closed, or reused, at any time.
    for entry in list(Path("/dev/fd").iterdir()):
        with contextlib.suppress(OSError), _duplicate(int(entry.name)) as connection:
            if _peer_of(connection) == peer:
                yield connection


def _duplicate(number: int) -> socket.socket:
    # Sockets only: closing a duplicate of a file would release the locks on it.
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        raise OSError(f"{number} is not a socket")
    duplicate = os.dup(number)
    try:
        return socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise


def _peer_of(connection: socket.socket) -> Peer:
    name = connection.getpeername()
    if not isinstance(name, tuple):
        return os.fsdecode(name)
    address = ipaddress.ip_address(name[0])
    # gRPC connects to an IPv4 host through an IPv6 socket where possible.
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address), int(name[1])
