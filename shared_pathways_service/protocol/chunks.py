"""Parts of large arrays as messages of an executor's stream, written and read without copies.

They are messages like the others, `ExecutorCommands` or `ExecutorReports` with the fields
`bytes_of` and `data` only. protobuf would copy the bytes twice on each side.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Chunk", "parsed_chunk", "serialized_chunk"]

#: The keys of the two fields: their numbers with the wire types VARINT and LEN.
_BYTES_OF, _DATA = 2 << 3 | 0, 3 << 3 | 2


class Chunk(NamedTuple):
    """The next bytes of a command or report."""

    bytes_of: int
    data: memoryview


def serialized_chunk(chunk: Chunk) -> bytes:
    """Returns the message of a chunk."""
    head = bytearray((_BYTES_OF,))
    _add_varint(head, chunk.bytes_of)
    head.append(_DATA)
    _add_varint(head, len(chunk.data))
    return b"".join((head, chunk.data))


def parsed_chunk(message: bytes) -> Chunk | None:
    """Returns the chunk that is a message, and shares its memory; None: it is another message."""
    # (Other messages begin with a field of a lower number, or are empty.)
    if not message or message[0] != _BYTES_OF:
        return None
    bytes_of, at = _varint(message, 1)
    if message[at] != _DATA:
        raise ValueError(f"a chunk with the key {message[at]} in place of {_DATA}")
    size, at = _varint(message, at + 1)
    if len(message) - at != size:
        raise ValueError(f"a chunk of {len(message) - at} bytes in place of {size}")
    return Chunk(bytes_of, memoryview(message)[at:])


def _add_varint(head: bytearray, number: int) -> None:
    while number >= 1 << 7:
        head.append(number & 0x7F | 0x80)
        number >>= 7
    head.append(number)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Returns a number, and the place behind it."""
    number = shift = 0
    while True:
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 1 << 7:
            return number, at
