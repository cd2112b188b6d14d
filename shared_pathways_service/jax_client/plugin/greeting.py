"""Reads what a server sends first, to a client that starts with HTTP/2 or sends nothing.

gRPC cannot distinguish a server that hangs up from one that is missing; a plain connection can.
"""

from __future__ import annotations

import enum
import time
from typing import Final

from . import sockets
from .timeout_table import timeouts

__all__ = ["Greeting", "greet", "refuses_plaintext"]

#: The start of an HTTP/2 client (RFC 9113, section 3.4): its preface, and an empty SETTINGS frame.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
#: An HTTP/2 PING frame, and the seconds of silence after which it is sent: some port-forwards
#: report that the far end has hung up only when something is written.
_PING: Final = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)
_PING_AFTER_S: Final = 0.5
#: The position of the type in a frame's header.
_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4
#: A tunnel accepts at once, and hangs up if its far end refuses the connection. A connection that
#: stays open several times as long was accepted.
_TIMES_LONGER: Final = 3.0


class Greeting(enum.Enum):
    """The outcome of a connection."""

    HTTP2 = "HTTP/2 settings"
    OTHER = "something else"
    HUNG_UP = "an end without an answer"
    SILENT = "nothing"
    UNREACHABLE = "no connection"


def greet(address: str, timeout_s: float, *, speaks: bool = True) -> Greeting:
    """Connects to ``unix:/path`` or ``host:port``, and returns what the server sends first.

    If it `speaks`, it starts like a plaintext client; otherwise it sends nothing.
    """
    deadline = time.monotonic() + timeout_s
    try:
        connection = sockets.connected(address, timeout_s)
    except OSError:
        return Greeting.UNREACHABLE
    with connection:
        head = b""
        try:
            if speaks:
                connection.sendall(_PREFACE)
            while len(head) < _HEAD_BYTES:
                left = max(0.001, deadline - time.monotonic())
                connection.settimeout(min(left, _PING_AFTER_S) if speaks else left)
                try:
                    received = connection.recv(_HEAD_BYTES - len(head))
                except TimeoutError:
                    if not speaks or time.monotonic() >= deadline:
                        raise
                    connection.sendall(_PING)
                    continue
                if not received:
                    return Greeting.OTHER if head else Greeting.HUNG_UP
                head += received
        except TimeoutError:
            return Greeting.OTHER if head else Greeting.SILENT
        except OSError:
            return Greeting.OTHER if head else Greeting.HUNG_UP
    return Greeting.HTTP2 if head[3] == _SETTINGS else Greeting.OTHER


def refuses_plaintext(address: str, timeout_s: float) -> bool:
    """Whether the proxy at an address listens, and hangs up on plaintext clients."""
    began = time.monotonic()
    if greet(address, timeout_s) is not Greeting.HUNG_UP:
        return False
    took = time.monotonic() - began
    # A proxy behind a tunnel that does not listen yet, or is ending, closes connections in the same
    # way.
    patience = max(timeouts.CONNECTION_ACCEPTED.s, _TIMES_LONGER * took)
    if greet(address, patience, speaks=False) is not Greeting.SILENT:
        return False
    return greet(address, timeout_s) is Greeting.HUNG_UP
