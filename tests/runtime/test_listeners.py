"""Listening for clients of IPv4, IPv6 and both."""

from __future__ import annotations

import socket

import pytest

from shared_pathways_service.runtime.listeners import listen

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")


def reached(port: int) -> list[str]:
    hosts = []
    for host in ("127.0.0.1", "::1"):
        try:
            socket.create_connection((host, port)).close()
        except ConnectionRefusedError:
            continue
        hosts.append(host)
    return hosts


@pytest.mark.parametrize(
    ("address", "hosts"),
    [
        ("0.0.0.0", ["127.0.0.1", "::1"]),
        ("::", ["127.0.0.1", "::1"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("::1", ["::1"]),
    ],
)
def test_who_reaches_an_address(address: str, hosts: list[str]) -> None:
    with listen(address, 0) as listener:
        assert reached(listener.getsockname()[1]) == hosts


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_an_error(address: str) -> None:
    with listen("0.0.0.0", 0) as first, pytest.raises(OSError, match="in use"):
        listen(address, first.getsockname()[1])


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1", "::1"])
def test_small_messages_are_sent_at_once(address: str) -> None:
    with listen(address, 0) as listener:
        host = "127.0.0.1" if address == "0.0.0.0" else address
        with (
            socket.create_connection((host, listener.getsockname()[1])),
            listener.accept()[0] as accepted,
        ):
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
