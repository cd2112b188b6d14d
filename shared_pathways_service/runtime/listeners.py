"""Listens for TCP, as gRPC does: at ``0.0.0.0`` or ``::`` for clients of IPv4 and of IPv6."""

from __future__ import annotations

import socket

__all__ = ["listen"]

_ANY = ("0.0.0.0", "::")  # noqa: S104 - a pod's own addresses


def listen(address: str, port: int, *, backlog: int = 128) -> socket.socket:
    """Returns a socket that listens; those it accepts send small messages at once.

    Args:
      address: An IP address without brackets. Of the two that mean all addresses each means those
        of both families, where the machine has both: pods of a cluster may have either.
      port: 0: any that is free.
      backlog: Connections that wait to be accepted.

    Raises:
      OSError: The port is in use, or the address is not of this machine.
    """
    is_any = address in _ANY and socket.has_dualstack_ipv6()
    listener = socket.create_server(
        ("::" if is_any else address, port),
        family=socket.AF_INET6 if is_any or ":" in address else socket.AF_INET,
        backlog=backlog,
        dualstack_ipv6=is_any,
    )
    # Accepted sockets inherit it. (asyncio sets it on those whose protocol number is that of TCP:
    # here it is 0. Without it each small message waits for the peer's delayed acknowledgement.)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
