"""What a port-forward's messages carry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.tunnel.frames import DATA, ERROR, Channels
from shared_pathways_service.tunnel.websocket import BINARY, TEXT, Piece

PORT = (29000).to_bytes(2, "little")


def pieces(message: bytes, at: list[int], opcode: int = BINARY) -> list[Piece]:
    """Cuts a message as the network might; its channel always comes with something."""
    ends = [*sorted({min(place, len(message)) for place in at if place} - {len(message)})]
    starts, stops = [0, *ends], [*ends, len(message)]
    return [
        Piece(opcode, memoryview(message)[a:b], a == 0, b == len(message))
        for a, b in zip(starts, stops, strict=True)
    ]


def receive(channels: Channels, message: bytes, at: list[int] | None = None) -> bytes:
    return b"".join(bytes(channels.receive(piece)) for piece in pieces(message, at or []))


def opened() -> Channels:
    channels = Channels()
    for channel in (DATA, ERROR):
        assert receive(channels, bytes((channel,)) + PORT) == b""
    return channels


CUTS = st.lists(st.integers(1, 80), max_size=6)


@given(st.lists(st.tuples(st.binary(max_size=80), CUTS), max_size=6), CUTS)
def test_the_ports_bytes_come_out_in_order(
    messages: list[tuple[bytes, list[int]]], preface: list[int]
) -> None:
    channels = Channels()
    out = receive(channels, b"\0" + PORT, preface)
    out += receive(channels, b"\1" + PORT, preface)
    for body, at in messages:
        out += receive(channels, b"\0" + body, at)
    assert out == b"".join(body for body, _ in messages)


@given(st.text(min_size=1, max_size=70).filter(str.strip), CUTS)
def test_the_far_ends_words_become_the_error(words: str, at: list[int]) -> None:
    channels = opened()
    with pytest.raises(TunnelError) as raised:
        receive(channels, b"\1" + words.encode(), at)
    assert raised.value.cause == words.strip()


def test_words_without_end_are_cut() -> None:
    with pytest.raises(TunnelError) as raised:
        receive(opened(), b"\1" + b"x" * 100_000)
    assert len(raised.value.cause) == 4096


@pytest.mark.parametrize(("opcode", "message"), [(BINARY, b"\2abc"), (BINARY, b""), (TEXT, b"\0a")])
def test_what_is_for_no_channel_is_refused(opcode: int, message: bytes) -> None:
    with pytest.raises(TunnelError, match="broke the protocol"):
        opened().receive(Piece(opcode, memoryview(message), True, True))
