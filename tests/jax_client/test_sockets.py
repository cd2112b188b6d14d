"""Connections that this process has open to one peer, ended whoever holds them."""

from __future__ import annotations

import socket
import tempfile
import threading
from pathlib import Path

import pytest

from harness.deadlines import deadline
from shared_pathways_service.jax_client.plugin import sockets

DEADLINE_S = deadline(60.0)


@pytest.mark.parametrize("family", ["unix", "tcp"])
def test_an_owner_that_dials_anew_is_hung_up_on_again(family: str) -> None:
    with tempfile.TemporaryDirectory(prefix="sps") as directory, _listener(family, directory) as at:
        address = (
            f"unix:{at.getsockname()}" if family == "unix" else f"127.0.0.1:{at.getsockname()[1]}"
        )
        peer = sockets.peer_at(address, DEADLINE_S)
        first = _dial(at)
        dialled = threading.Thread(target=_close_and_dial_until_ended, args=(first, at))
        dialled.start()
        try:
            assert sockets.count(peer) == 1
            assert sockets.shut_down(peer, DEADLINE_S)
            assert sockets.count(peer) == 0
        finally:
            dialled.join(DEADLINE_S)
        assert not dialled.is_alive()


def test_an_unclosed_connection_is_ended_and_reported() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="sps") as directory,
        _listener("unix", directory) as at,
        _dial(at) as held,
    ):
        peer = sockets.peer_at(f"unix:{at.getsockname()}", DEADLINE_S)
        assert not sockets.shut_down(peer, 0)
        assert held.recv(1) == b""
        assert sockets.count(peer) == 1


def _listener(family: str, directory: str) -> socket.socket:
    if family == "tcp":
        return socket.create_server(("127.0.0.1", 0))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(directory) / "s"))
    listener.listen()
    return listener


def _dial(at: socket.socket) -> socket.socket:
    connection = socket.socket(at.family)
    connection.settimeout(DEADLINE_S)
    connection.connect(at.getsockname())
    return connection


def _close_and_dial_until_ended(first: socket.socket, at: socket.socket) -> None:
    """Does as a client that was hung up on: it closes, having dialled once more."""
    assert first.recv(1) == b""
    with _dial(at) as second:
        first.close()
        assert second.recv(1) == b""
