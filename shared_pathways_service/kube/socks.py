"""The client's side of SOCKS5, without I/O (RFC 1928, and RFC 1929 for user and password)."""

from __future__ import annotations

import ipaddress
from collections.abc import Generator

__all__ = ["SocksError", "connect_steps"]

_VERSION, _LOGIN_VERSION = 5, 1
_NO_LOGIN, _LOGIN, _NO_METHOD = 0, 2, 0xFF
_CONNECT = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
#: Bytes of an address of these types; that of a name begins with its length.
_ADDRESS_BYTES = {_IPV4: 4, _IPV6: 16}
_PORT_BYTES = 2
_REFUSALS = {
    1: "general failure",
    2: "its rules do not allow the connection",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "the connection timed out",
    7: "it does not support connections",
    8: "it does not support this type of address",
}

#: Yields bytes to send and the number of bytes to receive after them, and takes these.
Steps = Generator[tuple[bytes, int], bytes, None]


class SocksError(Exception):
    """The proxy refused the connection, or does not speak SOCKS5."""


def connect_steps(host: str, port: int, *, user: str = "", password: str = "") -> Steps:
    """Yields the steps by which a proxy connects to a server; afterwards it forwards bytes.

    Args:
      host: The server's name, which the proxy resolves, or its address.
      port: The server's port.
      user: Empty: no login is offered. At most 255 bytes, as is the password.
      password: Of the user.

    Raises:
      SocksError: The proxy does not connect.
    """
    methods = [_NO_LOGIN, _LOGIN] if user else [_NO_LOGIN]
    version, method = yield bytes([_VERSION, len(methods), *methods]), 2
    _check_version(version)
    if method == _LOGIN and user:
        _, status = yield bytes([_LOGIN_VERSION]) + _counted(user) + _counted(password), 2
        if status != 0:
            raise SocksError(f"does not accept the password of user {user}")
    elif method != _NO_LOGIN:
        needed = "a user and a password" if method in (_LOGIN, _NO_METHOD) else "another login"
        raise SocksError(f"needs {needed}")
    target = _address(host) + port.to_bytes(_PORT_BYTES)
    version, status, _, kind = yield bytes([_VERSION, _CONNECT, 0]) + target, 4
    _check_version(version)
    if status != 0:
        raise SocksError(f"answered: {_REFUSALS.get(status, f'error {status}')}")
    # The address from which the proxy connects, which matters to no one.
    size = _ADDRESS_BYTES.get(kind)
    if size is None:
        (size,) = yield b"", 1
    yield b"", size + _PORT_BYTES


def _check_version(version: int) -> None:
    if version != _VERSION:
        raise SocksError("does not speak SOCKS5")


def _counted(text: str) -> bytes:
    encoded = text.encode()
    if len(encoded) > 255:
        raise SocksError("takes no name, user or password of more than 255 bytes")
    return bytes([len(encoded)]) + encoded


def _address(host: str) -> bytes:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return bytes([_NAME]) + _counted(host)
    return bytes([_IPV4 if address.version == 4 else _IPV6]) + address.packed
