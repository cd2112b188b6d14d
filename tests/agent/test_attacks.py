"""A program that asks its agent for all it can: the agent stays small, and ends when it is told."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from shared_pathways_service.agent.launch import launch_agent
from shared_pathways_service.agent.messages import MAX_BYTES, Decoder, encode
from tests.agent.fake_agent import COMMAND
from tests.agent.support import DEADLINE_S, Bench

#: Bytes that an agent may grow by: what waits for a client, what it is sent, and their like.
GROWTH = 64 << 20


class Attacked:
    """An agent that runs a session, and the bare socket to it."""

    def __init__(self, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
        self.process = process
        self.socket = sock
        self._look = psutil.Process(process.pid)
        self._decoder = Decoder()
        self._heard: list[dict[str, Any]] = []
        self._before = 0

    def settle(self) -> None:
        self._before = self._look.memory_info().rss

    @property
    def grown(self) -> int:
        return int(self._look.memory_info().rss) - self._before

    def hear(self, kind: str) -> dict[str, Any]:
        """Waits for a message, passing over others."""
        while True:
            while self._heard:
                message = self._heard.pop(0)
                if message["type"] == kind:
                    return message
            data = self.socket.recv(1 << 16)
            assert data, f"the agent ended before it said {kind!r}"
            self._heard += self._decoder.feed(data)

    def send_in_vain(self, data: bytes, enough: int) -> int:
        """Sends until the agent takes no more, or has taken enough; returns the bytes it took."""
        self.socket.settimeout(0.2)
        sent = 0
        with contextlib.suppress(OSError):
            while sent < enough:
                sent += self.socket.send(data)
        self.socket.settimeout(DEADLINE_S)
        return sent


@pytest.fixture
def attacked(bench: Bench) -> Iterator[Attacked]:
    """An agent whose session serves."""
    process, sock = launch_agent(bench.log, COMMAND)
    with sock:
        sock.settimeout(DEADLINE_S)
        agent = Attacked(process, sock)
        agent.hear("hello")
        sock.sendall(encode(bench.start().to_json()))
        agent.hear("proxy")
        agent.settle()
        yield agent
    assert process.wait(DEADLINE_S) == 0
    assert not bench.home.proxies


def test_who_asks_and_does_not_read_costs_no_more_than_what_waits(attacked: Attacked) -> None:
    ask = encode({"type": "logs", "id": "x" * 1000, "lines": 10**9})
    attacked.send_in_vain(ask * 50, 60 << 20)
    assert attacked.grown < GROWTH


def test_requests_beyond_the_limit_are_refused(attacked: Attacked) -> None:
    asks = [encode({"type": "logs", "id": number, "lines": 1}) for number in range(200)]
    attacked.socket.sendall(b"".join(asks))
    replies = [attacked.hear("reply") for _ in asks]
    assert {reply["id"] for reply in replies} == set(range(200))
    refused = [reply for reply in replies if "error" in reply]
    assert 0 < len(refused) < 200
    assert "not answered yet" in refused[0]["error"]["message"]
    # The end is heard all the same.
    attacked.socket.sendall(encode({"type": "close", "reason": "done"}))
    attacked.hear("ended")


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff" + bytes(1 << 16),
        (MAX_BYTES).to_bytes(4, "big") + bytes(1 << 16),
        (200_000).to_bytes(4, "big") + b"[" * 200_000,
    ],
    ids=["too-long", "announced", "nested"],
)
def test_a_session_whose_client_says_nonsense_ends(attacked: Attacked, said: bytes) -> None:
    attacked.socket.sendall(said)
    attacked.socket.shutdown(socket.SHUT_WR)
    attacked.hear("ended")
    assert attacked.grown < GROWTH
