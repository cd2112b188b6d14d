"""Messages between a proxy and a process that runs Python for it: a JSON object and buffers.

A message is a length, the object as JSON, whose field `sizes` has the length of each buffer, and
the buffers. The proxy reads nothing else of such a process: it runs code of the tenant.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Buffer", "encode", "receive_buffer", "receive_head", "send", "sizes_of"]

_LENGTH = struct.Struct("!Q")
#: The most bytes of the object.
_MOST = 1 << 20

Buffer = bytes | bytearray | memoryview


def sizes_of(buffers: Sequence[Buffer]) -> list[int]:
    """Returns the bytes of each buffer."""
    return [memoryview(buffer).nbytes for buffer in buffers]


def encode(head: Mapping[str, Any], sizes: Sequence[int] = ()) -> bytes:
    """Returns the beginning of a message, whose buffers have these sizes.

    Raises:
      ValueError: It is over the limit.
    """
    text = json.dumps({**head, "sizes": list(sizes)}).encode()
    if len(text) > _MOST:
        raise ValueError(
            f"a message with {len(sizes)} pieces of arrays needs {len(text)} bytes for their "
            f"sizes; the limit is {_MOST} bytes; use fewer arrays"
        )
    return _LENGTH.pack(len(text)) + text


def send(to: socket.socket, beginning: bytes, buffers: Sequence[Buffer] = ()) -> None:
    """Sends a message that begins as `encode` has returned."""
    to.sendall(beginning)
    for buffer in buffers:
        to.sendall(buffer)


def receive_head(source: socket.socket) -> dict[str, Any] | None:
    """Returns the object of the next message; None at the end."""
    length = _read(source, _LENGTH.size)
    if length is None:
        return None
    (size,) = _LENGTH.unpack(length)
    if size > _MOST:
        raise ConnectionError(f"a message whose object has {size} bytes")
    text = _read(source, size)
    if text is None:
        return None
    try:
        head: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConnectionError(f"a message without an object: {error}") from error
    return head


def receive_buffer(source: socket.socket, size: int) -> bytearray:
    """Returns the next buffer of a message."""
    buffer = _read(source, size)
    if buffer is None:
        raise ConnectionError("the message has ended")
    return buffer


def _read(source: socket.socket, size: int) -> bytearray | None:
    buffer = bytearray(size)
    view = memoryview(buffer)
    while view:
        count = source.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return buffer
