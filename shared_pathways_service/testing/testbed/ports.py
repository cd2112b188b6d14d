"""Picks free loopback ports outside the system's range of ephemeral ports.

A restarted program needs its old port again, which must not be in use by an outgoing connection.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

from shared_pathways_service.constants import LOOPBACK

__all__ = ["pick_ports"]

_LOWEST = 10_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000


def pick_ports(count: int) -> list[int]:
    """Returns distinct ports that are free now."""
    try:
        highest = int(_RANGE.read_text(encoding="ascii").split()[0])
    except OSError:
        highest = 32_768
    picked: list[int] = []
    for port in random.sample(range(_LOWEST, highest), min(_TRIES, highest - _LOWEST)):
        if len(picked) == count:
            break
        if _is_free(port):
            picked.append(port)
    return picked


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
