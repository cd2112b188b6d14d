"""Frames and messages are found however their bytes are cut."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.tunnel.link.http2_frames import (
    FrameReader,
    FrameType,
    MessageReader,
    encode_frame,
    encode_message,
)
from shared_pathways_service.tunnel.link.http2_pings import PREFACE

#: Empty, small, and longer than what is kept until it is whole.
PAYLOADS = st.one_of(
    st.binary(max_size=40), st.integers(16_380, 40_000).map(lambda size: b"x" * size)
)
FRAMES = st.lists(st.tuples(st.sampled_from(FrameType), st.integers(0, 9), PAYLOADS), max_size=6)
CUTS = st.lists(st.integers(0, 120_000), max_size=12)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    ends = sorted(min(cut, len(data)) for cut in cuts)
    starts = [0, *ends]
    return [data[start:end] for start, end in zip(starts, [*ends, len(data)], strict=True)]


@given(FRAMES, CUTS)
def test_every_frame_is_read_and_every_byte_passed(
    frames: list[tuple[FrameType, int, bytes]], cuts: list[int]
) -> None:
    data = PREFACE + b"".join(encode_frame(kind, 1, at, payload) for kind, at, payload in frames)
    reader = FrameReader(has_preface=True)
    raw, found, payload = b"", [], b""
    for piece in pieces(data, cuts):
        for part in reader.read(piece):
            raw += part.raw
            if part.type < 0:
                continue
            payload += part.payload
            if part.is_last:
                found.append((FrameType(part.type), part.stream, payload))
                payload = b""
    assert raw + reader.take_begun() == data
    assert found == frames
    assert reader.take_begun() == b""


@given(st.lists(PAYLOADS, max_size=6), CUTS)
def test_messages_are_read_and_long_ones_skipped(messages: list[bytes], cuts: list[int]) -> None:
    reader = MessageReader(limit_bytes=100)
    data = b"".join(map(encode_message, messages))
    found = [message for piece in pieces(data, cuts) for message in reader.read(piece)]
    assert found == [message for message in messages if len(message) <= 100]
    assert reader.skipped == len(messages) - len(found)


def test_a_compressed_message_is_skipped() -> None:
    reader = MessageReader(limit_bytes=100)
    compressed = b"\x01" + encode_message(b"zip")[1:]
    assert reader.read(compressed + encode_message(b"next")) == [b"next"]
