"""What client and agent say to each other, and what they do with what is no message."""

from __future__ import annotations

import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.deadlines import deadline
from harness.session_requests import session_request
from shared_pathways_service.agent.launch import launch_agent
from shared_pathways_service.agent.messages import (
    MAX_BYTES,
    Decoder,
    MessageError,
    Start,
    encode,
    last_that_fit,
)
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import Identity
from tests.agent.fake_agent import COMMAND
from tests.agent.support import Bench

SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=20))
MESSAGES = st.lists(
    st.dictionaries(st.text(max_size=5), SCALARS, max_size=4).map(lambda d: {**d, "type": "t"}),
    max_size=5,
)


@given(lines=st.lists(st.text(max_size=50), max_size=30))
def test_all_lines_of_a_short_log_fit(lines: list[str]) -> None:
    assert last_that_fit(lines) == lines


def test_of_a_long_log_the_last_lines_are_sent() -> None:
    lines = [f"{number} " + "\x00" * (64 << 10) for number in range(100)]
    sent = last_that_fit(lines)
    assert sent == lines[-len(sent) :]
    assert 5 < len(sent) < 100
    encode({"type": "reply", "id": 1, "lines": sent})


@given(messages=MESSAGES, size=st.integers(1, 40))
def test_messages_arrive_however_they_are_cut(messages: list[dict[str, object]], size: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    decoder = Decoder()
    got = []
    for at in range(0, len(stream), size):
        got += list(decoder.feed(stream[at : at + size]))
    assert got == messages


@pytest.mark.parametrize(
    "data",
    [
        (MAX_BYTES + 1).to_bytes(4, "big"),
        b"\0\0\0\2no",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b"\0\0\0\x0a" + b'{"type":1}',
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(MessageError):
        list(Decoder().feed(data))


def test_a_message_too_long_is_not_sent() -> None:
    with pytest.raises(MessageError):
        encode({"type": "t", "text": "x" * MAX_BYTES})


def test_orders_travel() -> None:
    start = Start(
        home=HomeChoice(name="fake", options={"directory": "/d"}),
        request=session_request(
            "p",
            "tpuv6e:2x2",
            "tpuv4:2x2x1",
            proxy_options=ProxyOptions(xla_flags=("--xla_a",)),
            labels={"a": "b"},
            queue_timeout=float("inf"),
        ),
        session="s",
        owner=Identity(pid=1, start="x"),
        journal="/j",
        delete_timeout_s=60.0,
    )
    assert Start.from_json(json.loads(json.dumps(start.to_json()))) == start


def test_orders_of_another_version_are_refused(bench: Bench) -> None:
    with pytest.raises(MessageError, match="exchanged"):
        Start.from_json({**bench.start().to_json(), "version": 0})
    with pytest.raises(MessageError):
        Start.from_json({**bench.start().to_json(), "request": {"nonsense": 1}})


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 64,
        encode({"type": "what"}),
        encode({"type": "start", "version": 0}),
        b"",
    ],
)
def test_an_agent_ends_on_invalid_messages(bench: Bench, said: bytes) -> None:
    process, sock = launch_agent(bench.log, COMMAND)
    with sock, process:
        sock.settimeout(deadline(60.0))
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        decoder, heard = Decoder(), []
        while data := sock.recv(1 << 16):
            heard += list(decoder.feed(data))
        assert process.wait(deadline(60.0)) == 0
    assert heard[0]["type"] == "hello"
    assert bench.home.calls == []
