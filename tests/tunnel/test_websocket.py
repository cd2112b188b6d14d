"""Frames against wsproto, the reference for what RFC 6455 says."""

from __future__ import annotations

import itertools
import re
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wsproto import frame_protocol as reference

from shared_pathways_service.tunnel.websocket import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    FrameBuffer,
    FrameReader,
    WebSocketViolation,
    accept_of,
    control_frame,
    handshake_headers,
)

# Around each length that changes a header's form.
LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([125, 126, 127, 65534, 65535, 65536]))
KEYS = st.binary(min_size=4, max_size=4)
Message = tuple[int, bytes]


def server_frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """Returns an unmasked frame, made without the code under test."""
    length = len(payload)
    first = (0x80 if final else 0) | opcode
    if length < 126:
        head = bytes((first, length))
    elif length < 1 << 16:
        head = bytes((first, 126)) + length.to_bytes(2, "big")
    else:
        head = bytes((first, 127)) + length.to_bytes(8, "big")
    return head + payload


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[Message], list[Message], bytes]:
    """Draws data messages, control frames between their fragments, and their bytes."""
    messages, controls, sent = [], [], b""
    for _ in range(draw(st.integers(0, 5))):
        opcode = draw(st.sampled_from([TEXT, BINARY]))
        parts = draw(st.lists(st.binary(max_size=400), min_size=1, max_size=4))
        for index, part in enumerate(parts):
            is_last = index == len(parts) - 1
            sent += server_frame(0 if index else opcode, part, final=is_last)
            if draw(st.booleans()):
                control = (draw(st.sampled_from([PING, PONG])), draw(st.binary(max_size=125)))
                controls.append(control)
                sent += server_frame(*control)
        messages.append((opcode, b"".join(parts)))
    return messages, controls, sent


def parse(reader: FrameReader, portions: list[bytes]) -> tuple[list[Message], list[Message]]:
    messages: list[Message] = []
    controls: list[Message] = []
    open_message: Message | None = None
    for portion in portions:
        for piece in reader.feed(memoryview(portion)):
            if piece.opcode in (CLOSE, PING, PONG):
                assert (piece.begins, piece.ends) == (True, True)
                controls.append((piece.opcode, bytes(piece.payload)))
                continue
            assert piece.begins == (open_message is None)
            so_far = open_message[1] if open_message else b""
            open_message = (piece.opcode, so_far + bytes(piece.payload))
            if piece.ends:
                messages.append(open_message)
                open_message = None
    assert open_message is None
    return messages, controls


def cut(data: bytes, at: list[int]) -> list[bytes]:
    ends = sorted(min(place, len(data)) for place in at)
    return [data[a:b] for a, b in itertools.pairwise([0, *ends, len(data)])]


@given(conversations(), st.lists(st.integers(0, 2000), max_size=12))
def test_what_a_server_sends_is_read_however_it_is_portioned(
    conversation: tuple[list[Message], list[Message], bytes], at: list[int]
) -> None:
    messages, controls, sent = conversation
    assert parse(FrameReader(), cut(sent, at)) == (messages, controls)


@given(conversations())
def test_it_is_read_byte_by_byte(
    conversation: tuple[list[Message], list[Message], bytes],
) -> None:
    messages, controls, sent = conversation
    portions = [bytes((byte,)) for byte in sent]
    assert parse(FrameReader(), portions) == (messages, controls)


@given(LENGTHS)
def test_every_form_of_a_length_is_read(length: int) -> None:
    payload = bytes(length)
    sent = server_frame(BINARY, payload)
    assert parse(FrameReader(), [sent]) == ([(BINARY, payload)], [])


def takes(portions: list[bytes]) -> bool:
    reader = FrameReader()
    try:
        for portion in portions:
            for _ in reader.feed(memoryview(portion)):
                pass
    except WebSocketViolation:
        return False
    return True


def flaw_by_reference(data: bytes) -> str:
    protocol = reference.FrameProtocol(client=True, extensions=[])
    protocol.receive_bytes(data)
    try:
        for _ in protocol.received_frames():
            pass
    except reference.ParseFailed as error:
        return str(error) or "not allowed"
    return ""


#: What the reference checks beyond that: the shortest form of a length, and what a CLOSE or a text
#: says, which do no harm here.
PEDANTIC = re.compile("length|utf-8|close|CLOSE|Payload", re.IGNORECASE)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_the_reference_allows_the_same(data: bytes, at: list[int]) -> None:
    flaw = flaw_by_reference(data)
    if not PEDANTIC.search(flaw):
        assert takes(cut(data, at)) == (not flaw), flaw


@pytest.mark.parametrize(
    ("frames", "what"),
    [
        (b"\xc2\x00", "reserved bit"),
        (b"\x82\x81", "masked"),
        (b"\x83\x00", "opcode"),
        (b"\x8b\x00", "opcode"),
        (b"\x09\x00", "control frame"),
        (b"\x89\x7e\x00\x7e", "control frame"),
        (b"\x80\x00", "out of order"),
        (b"\x02\x00\x82\x00", "out of order"),
    ],
)
def test_a_breach_of_the_protocol_is_named(frames: bytes, what: str) -> None:
    with pytest.raises(WebSocketViolation, match=what):
        parse(FrameReader(), [frames])


@given(LENGTHS, KEYS, st.integers(0, 255))
def test_a_servers_parser_reads_our_messages(length: int, key: bytes, prefix: int) -> None:
    payload = bytes(i % 251 for i in range(length))
    buffer = FrameBuffer(70_000, prefix)
    buffer.space[:length] = payload
    server = reference.FrameProtocol(client=False, extensions=[])
    server.receive_bytes(bytes(buffer.frame(length, key)))
    frames = list(server.received_frames())
    assert (
        b"".join(bytes(cast("bytearray", frame.payload)) for frame in frames)
        == bytes((prefix,)) + payload
    )
    assert frames[-1].message_finished


@given(st.lists(st.tuples(st.integers(0, 64), KEYS), max_size=6))
def test_a_buffer_can_be_used_again(frames: list[tuple[int, bytes]]) -> None:
    buffer = FrameBuffer(64, 0)
    server = reference.FrameProtocol(client=False, extensions=[])
    for index, (length, key) in enumerate(frames):
        buffer.space[:length] = bytes((index,)) * length
        server.receive_bytes(bytes(buffer.frame(length, key)))
        (frame,) = server.received_frames()
        assert frame.payload == b"\0" + bytes((index,)) * length


def test_a_buffer_is_as_large_as_it_was_asked_to_be() -> None:
    for capacity in range(1, 40):
        buffer = FrameBuffer(capacity, 0)
        assert len(buffer.space) == capacity
        assert len(buffer.frame(capacity, b"keys")) == 2 + 4 + 1 + capacity


@given(st.sampled_from([PING, PONG]), st.binary(max_size=125), KEYS)
def test_a_servers_parser_reads_our_control_frames(opcode: int, payload: bytes, key: bytes) -> None:
    server = reference.FrameProtocol(client=False, extensions=[])
    server.receive_bytes(control_frame(opcode, payload, key))
    (frame,) = server.received_frames()
    assert (frame.opcode, frame.payload) == (opcode, payload)


def test_the_handshake_is_that_of_the_rfc() -> None:
    # RFC 6455, section 1.3: the key of its example and the answer to it.
    headers = handshake_headers(b"the sample nonce", "v4.channel.k8s.io")
    assert headers["Sec-WebSocket-Key"] == "dGhlIHNhbXBsZSBub25jZQ=="
    assert accept_of(headers) == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
