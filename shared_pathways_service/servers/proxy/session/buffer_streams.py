"""Host buffers as streams of messages: put together as they come, cut up as they go.

The messages, GrpcHostBufferStoreRequest and GrpcHostBufferLookupResponse, have one field, `data`,
which is read and written in place: protobuf would copy it once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.session.buffers import (
    Arrived,
    BufferStore,
    HostBuffer,
    aligned_buffer,
    chunks,
)
from shared_pathways_service.servers.proxy.status_errors import Code, StatusError

__all__ = ["Waiting", "charge_for", "receive", "send", "wait_for"]

#: Bytes of one message of a download: the most that the client takes.
_DOWNLOAD_CHUNK = 16 << 20
#: The same where the host memory's limit is reached.
_SMALL_CHUNK = 64 << 10
#: Seconds that a download waits for its buffer.
_LOOKUP_TIMEOUT_S = 60.0
#: Bytes of the largest host buffer that is taken.
_LARGEST_BUFFER = 1 << 40
_DATA_TAG = 0x0A


def charge_for(store: BufferStore, size: int) -> HostCharge:
    """Takes memory for a buffer of the size that a client gave.

    Raises:
      StatusError: There is no such size, or no memory.
    """
    if not 0 <= size <= _LARGEST_BUFFER:
        raise StatusError(Code.INVALID_ARGUMENT, f"a host buffer of {size} bytes")
    return store.charge(size)


def receive(store: BufferStore, size: int, messages: Iterable[bytes]) -> HostBuffer:
    """Puts an upload together.

    Args:
      store: Where its memory is counted.
      size: Bytes in all, as the client says.
      messages: Its pieces.

    Raises:
      StatusError: No memory, or another number of bytes.
    """
    charge = charge_for(store, size)
    try:
        buffer = aligned_buffer(size)
    except MemoryError as error:
        raise StatusError(
            Code.RESOURCE_EXHAUSTED, f"no memory for a host buffer of {size} bytes"
        ) from error
    offset = 0
    for raw in messages:
        data = _chunk_data(raw)
        if offset + len(data) > size:
            raise StatusError(Code.INVALID_ARGUMENT, f"a host buffer longer than {size} bytes")
        buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        offset += len(data)
    if offset != size:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"a host buffer of {size} bytes that ended after {offset}"
        )
    return HostBuffer(buffer, charge)


class Waiting(Protocol):
    """Who waits for a buffer."""

    def wait(self, timeout_s: float) -> None:
        """Waits until `wake` was called, or nobody wants the buffer any more."""

    def wake(self) -> None:
        """Ends `wait`, on any thread."""


def wait_for(store: BufferStore, handle: int, waiting: Waiting) -> HostBuffer:
    """Returns a buffer once it is there.

    Args:
      store: Where it will be.
      handle: Its handle.
      waiting: Waits for it.

    Raises:
      StatusError: The buffer's own error, or it did not come in time.
    """
    found: list[Arrived] = []
    at_once = True

    def arrive(buffer: Arrived) -> None:
        found.append(buffer)
        if not at_once:
            waiting.wake()

    store.when_there(handle, arrive)
    # Mostly it is: the client asks when it has heard so.
    at_once = False
    if not found:
        waiting.wait(_LOOKUP_TIMEOUT_S)
    if not found:
        store.forget(handle, arrive)
        raise StatusError(Code.NOT_FOUND, f"Unknown host buffer handle: {handle}")
    buffer = found[0]
    if isinstance(buffer, StatusError):
        raise buffer.anew()
    return buffer


def send(buffer: HostBuffer, memory: HostMemory) -> Iterator[bytes]:
    """Cuts a download up.

    Args:
      buffer: Held, with its memory, until the last message is taken, also where its client deletes
        it meanwhile.
      memory: Where the messages are counted.
    """
    size = len(buffer.data)
    try:
        # A message and gRPC's copy of it, however slowly they are read.
        room = memory.charge(2 * min(size, _DOWNLOAD_CHUNK), "a download")
        chunk = _DOWNLOAD_CHUNK
    except StatusError:
        # Its buffer was let in, and is freed by being read.
        room, chunk = None, _SMALL_CHUNK
    for view in chunks(buffer.data, chunk):
        yield b"".join((_chunk_header(len(view)), view))
    del room


def _chunk_data(raw: bytes) -> memoryview:
    if not raw:
        return memoryview(b"")
    length, position, shift = 0, 1, 0
    while raw[0] == _DATA_TAG and position < min(len(raw), 11):
        byte = raw[position]
        length |= (byte & 0x7F) << shift
        position += 1
        shift += 7
        if byte < 0x80:
            if position + length == len(raw):
                return memoryview(raw)[position:]
            break
    try:
        return memoryview(proxy_pb2.GrpcHostBufferStoreRequest.FromString(raw).data)
    except DecodeError as error:
        raise StatusError(
            Code.INVALID_ARGUMENT, f"not a GrpcHostBufferStoreRequest: {error}"
        ) from error


def _chunk_header(length: int) -> bytes:
    header = bytearray([_DATA_TAG])
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header)
