"""Frames of a link that are not part of a connection's stream: acknowledgements, SYNC, texts."""

from __future__ import annotations

import struct
from typing import NamedTuple

from shared_pathways_service.tunnel.link.link_frames import (
    Buffer,
    FrameKind,
    LinkViolation,
    frame_header,
)

__all__ = [
    "SyncEntry",
    "ack_frame",
    "parse_ack",
    "parse_sync",
    "parse_text",
    "sync_frame",
    "text_frame",
]

_SYNC_HEAD = struct.Struct(">II")  # connections the sender knows up to; number of entries
_SYNC_ENTRY = struct.Struct(">IQQ")
_RECEIVED = struct.Struct(">Q")
_TEXT_BYTES = 1000


class SyncEntry(NamedTuple):
    """What the sender of a SYNC has of a connection: two offsets."""

    connection: int
    passed_on: int
    received: int


def sync_frame(known_to: int, entries: list[SyncEntry], accepts: int) -> bytes:
    """Returns a SYNC.

    Args:
      known_to: All connections up to this number were open at some time.
      entries: Those that are open.
      accepts: Bytes of a connection that the sender accepts after those that it acknowledged. (In
        the place of an offset, where ends that know of no such number send 0 and read nothing.)
    """
    packed = b"".join(_SYNC_ENTRY.pack(*entry) for entry in entries)
    payload = _SYNC_HEAD.pack(known_to, len(entries)) + packed
    return frame_header(FrameKind.SYNC, 0, accepts, len(payload)) + payload


def parse_sync(payload: Buffer, most: int) -> tuple[int, list[SyncEntry]]:
    """Returns the first two arguments of `sync_frame`.

    Raises:
      LinkViolation: It is malformed, or has more than `most` entries.
    """
    if len(payload) < _SYNC_HEAD.size:
        raise LinkViolation("a SYNC is too short")
    known_to, count = _SYNC_HEAD.unpack_from(payload)
    if count > most or len(payload) != _SYNC_HEAD.size + count * _SYNC_ENTRY.size:
        raise LinkViolation(f"a SYNC with {count} connections has {len(payload)} bytes")
    entries = _SYNC_ENTRY.iter_unpack(bytes(payload[_SYNC_HEAD.size :]))
    return known_to, [SyncEntry(*entry) for entry in entries]


def ack_frame(connection: int, passed_on: int, received: int) -> bytes:
    """Returns an ACK."""
    return frame_header(FrameKind.ACK, connection, passed_on, _RECEIVED.size) + _RECEIVED.pack(
        received
    )


def parse_ack(payload: Buffer) -> int:
    """Returns `received` of an ACK; raises `LinkViolation` if it is malformed."""
    if len(payload) != _RECEIVED.size:
        raise LinkViolation(f"an ACK has {len(payload)} bytes of payload")
    return int(_RECEIVED.unpack(payload)[0])


def text_frame(kind: FrameKind, connection: int, text: str) -> bytes:
    """Returns a RESET or BYE with a text, of which some hundred characters are sent."""
    payload = text.encode()[:_TEXT_BYTES]
    return frame_header(kind, connection, 0, len(payload)) + payload


def parse_text(payload: Buffer) -> str:
    """Returns the text of a RESET or BYE."""
    return bytes(payload[:_TEXT_BYTES]).decode(errors="replace")
