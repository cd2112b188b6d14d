"""Which gRPC credentials a proxy uses, found out without gRPC, which does not tell.

OpenXLA's IFRT proxy (`common/grpc_credentials_possibly_insecure_wrapper.cc`) speaks plaintext only
if its environment says so, else ALTS; the same holds for its client. A server with ALTS takes the
first bytes of a plaintext client for a broken handshake and hangs up without an answer; a plaintext
server sends its HTTP/2 settings before it has read anything.
"""

from __future__ import annotations

import enum
import socket
import time
from typing import Final

from shared_pathways_service.errors import CredentialsMismatch, ServiceNotReady

__all__ = [
    "INSECURE_VARIABLE",
    "Greeting",
    "check_plaintext",
    "greet",
    "mismatch",
    "wait_until_silent",
]

#: Plaintext only if it is exactly ``true``, on either side.
INSECURE_VARIABLE: Final = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"

#: How an HTTP/2 client begins (RFC 9113, section 3.4): its preface, and an empty SETTINGS frame.
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
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
                connection.settimeout(max(0.001, deadline - time.monotonic()))
                received = connection.recv(_HEAD_BYTES - len(head))
                if not received:
                    return Greeting.OTHER if head else Greeting.HUNG_UP
                head += received
        except TimeoutError:
            return Greeting.OTHER if head else Greeting.SILENT
        except OSError:
            return Greeting.OTHER if head else Greeting.HUNG_UP
    return Greeting.HTTP2 if head[3] == _SETTINGS else Greeting.OTHER


def check_plaintext(address: str, timeout_s: float) -> None:
    """Returns unless the proxy at an address hangs up on plaintext clients.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds for one answer.

    Raises:
      CredentialsMismatch: It listens, and hangs up on a client that begins with HTTP/2. It is no
        error if it does not listen, or does not answer.
    """
    began = time.monotonic()
    if greet(address, timeout_s) is not Greeting.HUNG_UP:
        return
    took = time.monotonic() - began
    # The same end has a proxy that does not listen yet behind a tunnel, or that is ending.
    patience = max(_OPEN_S, _TIMES_LONGER * took)
    if greet(address, patience, speaks=False) is not Greeting.SILENT:
        return
    if greet(address, timeout_s) is Greeting.HUNG_UP:
        raise mismatch(address, client_is_plaintext=True)


def wait_until_silent(address: str, patience_s: float) -> None:
    """Returns if a proxy that does not speak plaintext listens at an address.

    With ALTS the client speaks first, so that nothing can be asked: a connection that stays open
    shows that somebody listens.

    Args:
      address: ``unix:/path`` or ``host:port``.
      patience_s: Seconds that the connection must stay open.

    Raises:
      CredentialsMismatch: The proxy begins with HTTP/2: it speaks plaintext.
      ServiceNotReady: It cannot be connected to, or hangs up.
    """
    greeting = greet(address, patience_s, speaks=False)
    if greeting is Greeting.HTTP2:
        raise mismatch(address, client_is_plaintext=False)
    if greeting is not Greeting.SILENT:
        raise ServiceNotReady(f"the proxy at {address} does not listen: {greeting.value} came")


def mismatch(address: str, *, client_is_plaintext: bool) -> CredentialsMismatch:
    """Returns the error for a proxy whose credentials are not the client's."""
    if client_is_plaintext:
        return CredentialsMismatch(
            f"the proxy at {address} hangs up on plaintext gRPC, which this client speaks",
            client=f"{INSECURE_VARIABLE}=true",
            proxy=f"{INSECURE_VARIABLE} is not exactly 'true' (Google's default: ALTS)",
            hint=f"start the proxy with {INSECURE_VARIABLE}=true, as connect() does by default; "
            "or, on a machine of Google Cloud, connect with "
            'proxy_options=["use_insecure_credentials:false"]',
        )
    return CredentialsMismatch(
        f"the proxy at {address} speaks plaintext gRPC, and this client ALTS",
        client=f"{INSECURE_VARIABLE} is not exactly 'true' (Google's default: ALTS)",
        proxy=f"{INSECURE_VARIABLE}=true",
        hint="leave out use_insecure_credentials:false of proxy_options=, or set "
        f"{INSECURE_VARIABLE}=true (exactly so) for the client",
    )


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
