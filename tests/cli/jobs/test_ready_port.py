"""The port by which the pod of a submitted job counts as ready."""

from __future__ import annotations

import contextlib
import socket

import pytest

from harness.deadlines import deadline
from shared_pathways_service.cli.ready_port import ReadyPort


def test_it_answers_more_probes_than_its_queue_has_room_for() -> None:
    with contextlib.closing(ReadyPort("127.0.0.1", 0, backlog=1)) as ready:
        address = ("127.0.0.1", ready.port)
        for _ in range(20):
            with socket.create_connection(address, deadline(10.0)) as probe:
                assert probe.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, deadline(10.0))
