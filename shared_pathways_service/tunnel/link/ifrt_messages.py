"""The few messages of JAX's proxy protocol that early buffers concern, without protobuf.

Their fields are in `protocol/ifrt/proxy.proto`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = [
    "BUFFER_PATHS",
    "LOOKUP_PATH",
    "SESSION_PATH",
    "VERSION_PATH",
    "answered_copy",
    "encode_lookup",
    "encode_lookup_answer",
    "lookup_data",
    "lookup_key",
    "requested_copy",
    "session_of_init",
]

SESSION_PATH = b"/xla.ifrt.proxy.GrpcIfrtService/IfrtSession"
VERSION_PATH = b"/xla.ifrt.proxy.GrpcIfrtService/GetVersion"
#: How the paths of all calls for buffers begin.
BUFFER_PATHS = b"/xla.ifrt.proxy.GrpcIfrtService/HostBuffer"
LOOKUP_PATH = b"/xla.ifrt.proxy.GrpcIfrtService/HostBufferLookup"

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_METADATA, _OP_ID = 1, 1
_INIT, _INIT_SESSION_ID = 2, 8
_COPY, _COPY_BUFFER = 6, 1
_LOOKUP_SESSION, _LOOKUP_HANDLE, _LOOKUP_DATA = 1, 2, 1


def requested_copy(request: bytes) -> tuple[int, int] | None:
    """Returns op_id and host_buffer_handle of a CopyToHostBufferRequest; None: another request."""
    fields = _fields(request)
    if not isinstance(copy := fields.get(_COPY), bytes):
        return None
    return _op_id(fields), _number(_fields(copy), _COPY_BUFFER)


def answered_copy(answer: bytes) -> int | None:
    """Returns the op_id of a CopyToHostBufferResponse; None: another answer, or an error."""
    fields = _fields(answer)
    return _op_id(fields) if _COPY in fields else None


def session_of_init(answer: bytes) -> int | None:
    """Returns the session's id of an InitResponse; None: another answer, or an error."""
    init = _fields(answer).get(_INIT)
    return _number(_fields(init), _INIT_SESSION_ID) if isinstance(init, bytes) else None


def encode_lookup(session: int, handle: int) -> bytes:
    """Returns a GrpcHostBufferLookupRequest."""
    return b"\x09" + session.to_bytes(8, "little") + b"\x11" + handle.to_bytes(8, "little")


def lookup_key(request: bytes) -> tuple[int, int]:
    """Returns session and handle of a GrpcHostBufferLookupRequest."""
    fields = _fields(request)
    return _number(fields, _LOOKUP_SESSION), _number(fields, _LOOKUP_HANDLE)


def encode_lookup_answer(data: bytes) -> bytes:
    """Returns a GrpcHostBufferLookupResponse."""
    if not data:
        return b""
    return bytes((_LOOKUP_DATA << 3 | _BYTES,)) + _encode_varint(len(data)) + data


def lookup_data(answer: bytes) -> bytes:
    """Returns the bytes of a GrpcHostBufferLookupResponse."""
    data = _fields(answer).get(_LOOKUP_DATA, b"")
    return data if isinstance(data, bytes) else b""


def _op_id(fields: dict[int, int | bytes]) -> int:
    metadata = fields.get(_METADATA)
    return _number(_fields(metadata), _OP_ID) if isinstance(metadata, bytes) else 0


def _number(fields: dict[int, int | bytes], number: int) -> int:
    value = fields.get(number, 0)
    return value if isinstance(value, int) else 0


def _fields(message: bytes) -> dict[int, int | bytes]:
    """Returns the fields of a message; of a repeated one the last, and none if it is malformed."""
    try:
        return dict(_read(message))
    except (IndexError, ValueError):
        return {}


def _read(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        content = message[position : position + length]
        if len(content) < length:
            raise IndexError("the message ends in a field")
        position += length
        yield tag >> 3, content if kind == _BYTES else int.from_bytes(content, "little")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError("a number is too long")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
