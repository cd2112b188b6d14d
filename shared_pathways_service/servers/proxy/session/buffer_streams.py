"""Host buffers as streams of messages: joins them on arrival, splits them for sending.

The messages, GrpcHostBufferStoreRequest and GrpcHostBufferLookupResponse, have one field, `data`,
which is read and written in place: protobuf would make one more copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
from google.protobuf.message import DecodeError

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.devices.array_bytes import aligned_buffer
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.session.buffers import (
    Arrived,
    BufferStore,
    HostBuffer,
    chunks,
)

__all__ = ["Waiting", "charge_for", "receive", "send", "wait_for"]

#: The most bytes of one message of a download that the client accepts.
_DOWNLOAD_CHUNK = 16 << 20
#: The same when the host memory's limit is reached.
_SMALL_CHUNK = 64 << 10
#: The largest host buffer that is accepted, in bytes.
_LARGEST_BUFFER = 1 << 40
_DATA_TAG = 0x0A


def charge_for(store: BufferStore, size: int) -> HostCharge:
    """Charges memory for a buffer of the size that a client gave."""
    if not 0 <= size <= _LARGEST_BUFFER:
        raise invalid_argument(f"a host buffer of {size} bytes")
    return store.charge(size)


def receive(store: BufferStore, size: int, messages: Iterable[bytes]) -> HostBuffer:
    """Joins the messages of an upload, whose total size the client has stated."""
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
            raise invalid_argument(f"a host buffer longer than {size} bytes")
        buffer[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        offset += len(data)
    if offset != size:
        raise invalid_argument(f"a host buffer of {size} bytes that ended after {offset}")
    return HostBuffer(buffer, charge)


class Waiting(Protocol):
    """A wait for a buffer."""

    def wait(self, timeout_s: float) -> None:
        """Waits until `wake` is called, or the client has gone."""

    def wake(self) -> None:
        """Ends `wait`, on any thread."""


def wait_for(store: BufferStore, handle: int, waiting: Waiting) -> HostBuffer:
    """Returns a buffer once it is there, or raises its error; NOT_FOUND after a time."""
    found: list[Arrived] = []
    at_once = True

    def arrive(buffer: Arrived) -> None:
        found.append(buffer)
        if not at_once:
            waiting.wake()

    store.when_there(handle, arrive)
    # Usually it is there: the client asks after an announcement.
    at_once = False
    if not found:
        waiting.wait(timeouts.DOWNLOAD_BUFFER.s)
    if not found:
        store.forget(handle, arrive)
        raise StatusError(Code.NOT_FOUND, f"Unknown host buffer handle: {handle}")
    buffer = found[0]
    if isinstance(buffer, StatusError):
        raise buffer.copy()
    return buffer


def send(buffer: HostBuffer, memory: HostMemory) -> Iterator[bytes]:
    """Splits a download into messages, which are charged to `memory`.

    The buffer is held, with its memory, until the last message is taken, even if its client deletes
    it meanwhile.
    """
    size = len(buffer.data)
    try:
        # A message and gRPC's copy of it, however slowly they are read.
        room = memory.charge(2 * min(size, _DOWNLOAD_CHUNK), "a download")
        chunk = _DOWNLOAD_CHUNK
    except StatusError:
        # Its buffer was admitted, and is freed by being read.
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
        raise invalid_argument(f"not a GrpcHostBufferStoreRequest: {error}") from error


def _chunk_header(length: int) -> bytes:
    header = bytearray([_DATA_TAG])
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return bytes(header)
