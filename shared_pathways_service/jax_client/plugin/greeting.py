"""What a server sends first, to a client that begins with HTTP/2 or says nothing.

gRPC does not tell a server that hangs up from one that is not there; a bare connection does.

Like the plug-in the file needs the standard library only: both are copied together.
"""

from __future__ import annotations

import enum
import socket
import time
from typing import Final

__all__ = ["Greeting", "greet", "refuses_plaintext"]

#: How an HTTP/2 client begins (RFC 9113, section 3.4): its preface, and an empty SETTINGS frame.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
#: An HTTP/2 PING frame, and seconds after which one is sent into a silence: some port-forwards
#: pass on that the far end has hung up only when something is written.
_PING: Final = bytes((0, 0, 8, 6, 0, 0, 0, 0, 0)) + bytes(8)
_PING_AFTER_S: Final = 0.5
#: Of a frame's head: its type is the fourth byte.
_HEAD_BYTES: Final = 9
_SETTINGS: Final = 4
#: Seconds that a connection stays open at least before somebody is taken to listen behind it.
_OPEN_S: Final = 1.0
#: A tunnel accepts at once and hangs up when its far end does not take the connection: a connection
#: that stayed open several times as long as the other took to end was taken.
_TIMES_LONGER: Final = 3.0


class Greeting(enum.Enum):
    """What comes of a connection."""

    HTTP2 = "HTTP/2 settings"
    OTHER = "something else"
    HUNG_UP = "an end without an answer"
    SILENT = "nothing"
    UNREACHABLE = "no connection"


def greet(address: str, timeout_s: float, *, speaks: bool = True) -> Greeting:
    """Connects, and says what comes first.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds to wait for it.
      speaks: Whether to begin as a plaintext client does; else nothing is sent.
    """
    deadline = time.monotonic() + timeout_s
    try:
        connection = _connected(address, timeout_s)
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
    """Whether the proxy at an address listens, and hangs up on plaintext clients.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds for one answer.
    """
    began = time.monotonic()
    if greet(address, timeout_s) is not Greeting.HUNG_UP:
        return False
    took = time.monotonic() - began
    # The same end has a proxy that does not listen yet behind a tunnel, or that is ending.
    patience = max(_OPEN_S, _TIMES_LONGER * took)
    if greet(address, patience, speaks=False) is not Greeting.SILENT:
        return False
    return greet(address, timeout_s) is Greeting.HUNG_UP


def _connected(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.removeprefix("unix:"))
        except OSError:
            connection.close()
            raise
        return connection
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)), timeout_s)
