"""The link of `sps verify` that can be cut: bytes in both directions, and HTTP proxies."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from harness.programs import DEADLINE_S
from shared_pathways_service.cli.verification.link import CuttableLink
from shared_pathways_service.kube.http_proxies import LINK_VARIABLE, proxy_of_environment


def test_the_link_forwards_bytes_until_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxy(monkeypatch, "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        link = CuttableLink()
        try:
            port = int(str(link.environment[LINK_VARIABLE]).rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
                target = f"127.0.0.1:{server.getsockname()[1]}"
                client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
                assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
                client.sendall(b"hello")
                assert client.recv(4096) == b"hello"
                assert link.cut() == 1
                assert client.recv(4096) == b""
            with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
                client.sendall(b"GET http://x/ HTTP/1.1\r\n\r\n")
                assert client.recv(4096).startswith(b"HTTP/1.1 405 ")
        finally:
            link.close()
            thread.join(DEADLINE_S)
        assert not thread.is_alive()


def check_answer(client: socket.socket, expected: bytes, *, is_greeted: bool) -> None:
    """Checks how the link answers, and that the greeting of the server follows."""
    received = client.recv(4096)
    assert received.startswith(expected)
    while is_greeted and not received.endswith(b"hello"):
        data = client.recv(4096)
        assert data
        received += data


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nhello", b"HTTP/1.1 200 "),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", b"HTTP/1.1 502 "),
    ],
    ids=["connected", "refused"],
)
def test_the_link_goes_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, answer: bytes, expected: bytes
) -> None:
    heads: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_as_proxy, args=(server, answer, heads))
        thread.start()
        set_proxy(monkeypatch, f"http://ada:p%40ss@127.0.0.1:{server.getsockname()[1]}")
        with through_link("api.invalid:443") as client:
            check_answer(client, expected, is_greeted=b"hello" in answer)
        thread.join(DEADLINE_S)
    [head] = heads
    assert head.startswith(b"CONNECT api.invalid:443 HTTP/1.1\r\nHost: api.invalid:443\r\n")
    user = base64.b64encode(b"ada:p@ss")
    assert b"\r\nProxy-Authorization: Basic " + user + b"\r\n" in head


@pytest.mark.parametrize(("status", "expected"), [(0, b"HTTP/1.1 200 "), (5, b"HTTP/1.1 502 ")])
def test_the_link_goes_through_a_socks_proxy(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: bytes
) -> None:
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_as_socks, args=(server, status, requests))
        thread.start()
        set_proxy(monkeypatch, f"socks5h://127.0.0.1:{server.getsockname()[1]}")
        with through_link("api.invalid:443") as client:
            check_answer(client, expected, is_greeted=status == 0)
        thread.join(DEADLINE_S)
    assert requests == [b"\x05\x01\x00", b"\x05\x01\x00\x03\x0bapi.invalid\x01\xbb"]


def test_a_client_uses_the_link_on_loopback_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    set_proxy(monkeypatch, "http://proxy.invalid:3128", but_for="*")
    link = CuttableLink()
    try:
        for name, value in link.environment.items():
            assert value is not None
            monkeypatch.setenv(name, value)
        proxy = proxy_of_environment("https://127.0.0.1:6443")
        assert proxy is not None
        assert proxy.url == link.environment[LINK_VARIABLE]
    finally:
        link.close()


def test_the_link_connects_directly_to_hosts_of_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo, args=(server,))
        thread.start()
        set_proxy(monkeypatch, "http://proxy.invalid:3128", but_for="127.0.0.1")
        with through_link(f"127.0.0.1:{server.getsockname()[1]}") as client:
            assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
            client.sendall(b"hello")
            assert client.recv(4096) == b"hello"
        thread.join(DEADLINE_S)


def set_proxy(monkeypatch: pytest.MonkeyPatch, url: str, *, but_for: str = "") -> None:
    for name, value in (("https_proxy", url), ("no_proxy", but_for)):
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv(name, value)


@contextlib.contextmanager
def through_link(target: str) -> Iterator[socket.socket]:
    """Connects to a link, and asks it for a target."""
    link = CuttableLink()
    try:
        port = int(str(link.environment[LINK_VARIABLE]).rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
            client.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            yield client
    finally:
        link.close()


def answer_as_proxy(server: socket.socket, answer: bytes, heads: list[bytes]) -> None:
    """Answers the first request, and adds its head to the heads."""
    server.settimeout(DEADLINE_S)
    one, _ = server.accept()
    with one:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (data := one.recv(4096)):
            head += data
        heads.append(head)
        one.sendall(answer)


def answer_as_socks(server: socket.socket, status: int, requests: list[bytes]) -> None:
    """Answers a client of SOCKS5, and adds its two requests to the list."""
    server.settimeout(DEADLINE_S)
    one, _ = server.accept()
    with one:
        requests.append(one.recv(4096))
        one.sendall(b"\x05\x00")
        requests.append(one.recv(4096))
        one.sendall(bytes([5, status, 0, 1]) + bytes(6) + b"hello")


def echo(server: socket.socket) -> None:
    one, _ = server.accept()
    with one:
        while data := one.recv(4096):
            one.sendall(data)
