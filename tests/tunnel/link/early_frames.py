"""Frames of HTTP/2 as JAX and a proxy send them."""

from __future__ import annotations

from shared_pathways_service.tunnel.link.http2_frames import (
    END_HEADERS,
    FrameReader,
    FrameType,
    Part,
    encode_frame,
    encode_message,
    literal,
)

__all__ = ["HANDLE", "SESSION", "data", "headers", "parts"]

SESSION, HANDLE = 77, 1234


def headers(stream: int, path: bytes) -> bytes:
    return encode_frame(FrameType.HEADERS, END_HEADERS, stream, literal(4, path))


def data(stream: int, message: bytes, flags: int = 0) -> bytes:
    return encode_frame(FrameType.DATA, flags, stream, encode_message(message))


def parts(raw: bytes) -> list[Part]:
    return list(FrameReader(has_preface=False).read(raw))
