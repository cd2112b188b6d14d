"""Reads and writes the callback protocol's messages as bytes, without protobuf.

`protocol/callbacks.proto` defines them. A program that uses a proxy through its environment only
may have any release of protobuf, or none. So this file needs the standard library and numpy only.
"""

from __future__ import annotations

import dataclasses
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = [
    "INFER",
    "PROPAGATE",
    "Cancelled",
    "CompileCall",
    "CompileValue",
    "Dropped",
    "Invocation",
    "Piece",
    "Ready",
    "answer",
    "bytes_field",
    "compile_answer",
    "dtype_of",
    "failure",
    "fields_of",
    "number_field",
    "read",
]

#: Values of a CompileCall's kind.
INFER, PROPAGATE = 2, 3

#: Bytes of arrays in one message.
_PIECE = 1 << 20
_TOKEN = "token"  # noqa: S105 - a type
#: Maximum characters of an error: gRPC and XLA copy them often.
_MOST_TEXT = 64 << 10
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclasses.dataclass(frozen=True)
class Ready:
    """The proxy serves this session's callbacks from now on."""


@dataclasses.dataclass(frozen=True)
class Cancelled:
    """The answer of a call is no longer needed."""

    call: int


@dataclasses.dataclass(frozen=True)
class Dropped:
    """A program makes no more calls."""

    program: int


@dataclasses.dataclass(frozen=True)
class Piece:
    """More data of a call."""

    call: int
    data: bytes


class Invocation:
    """One call of a function; its data may arrive in pieces."""

    def __init__(self, raw: bytes) -> None:
        self.call = self.program = self.callback = self.lane = 0
        self._types: list[tuple[str, tuple[int, ...]]] = []
        self._data: bytes | bytearray = b""
        for field, value in fields_of(raw):
            if field == 1:
                self.call = value
            elif field == 2:
                self.program = value
            elif field == 3:
                self.callback = value
            elif field == 4:
                self._types.append(_read_type(value))
            elif field == 5:
                self._data = value
            elif field == 6:
                self.lane = value
        self._nbytes = sum(_nbytes(*one) for one in self._types)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived."""
        return len(self._data) >= self._nbytes

    def add(self, data: bytes) -> None:
        """Adds bytes."""
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        self._data += data

    def arguments(self) -> list[Any]:
        """Returns the arguments: read-only numpy arrays; None for tokens."""
        import numpy as np  # noqa: PLC0415 - other programs need not pay for it

        found: list[Any] = []
        start = 0
        for name, shape in self._types:
            if name == _TOKEN:
                found.append(None)
                continue
            dtype = dtype_of(name)
            count = math.prod(shape)
            array = np.frombuffer(self._data, dtype, count, start).reshape(shape)
            array.flags.writeable = False
            found.append(array)
            start += count * dtype.itemsize
        return found


@dataclasses.dataclass(frozen=True)
class CompileValue:
    """An operand or result of a call at compile time; a sharding is a serialized xla.OpSharding."""

    dtype: str
    shape: tuple[int, ...]
    sharding: bytes | None


class CompileCall:
    """A call from XLA at compile time, with the protocol's number of its kind."""

    def __init__(self, raw: bytes) -> None:
        self.kind = 0
        self.operands: list[CompileValue] = []
        self.results: list[CompileValue] = []
        for field, value in fields_of(raw):
            if field == 1:
                self.kind = value
            elif field in (2, 3):
                parts = dict(fields_of(value))
                one = CompileValue(*_read_type(parts.get(1, b"")), parts.get(2))
                (self.operands if field == 2 else self.results).append(one)


def compile_answer(program: bytes, operands: Sequence[bytes], results: Sequence[bytes]) -> bytes:
    """Makes a CompileAnswer: portable StableHLO, if any, and shardings of operands and results."""
    shardings = (
        *(bytes_field(2, one) for one in operands),
        *(bytes_field(3, one) for one in results),
    )
    return bytes_field(1, program) + b"".join(shardings)


def read(raw: bytes) -> Ready | Cancelled | Dropped | Piece | Invocation | None:
    """Parses a message of the proxy; None: it belongs to a newer protocol."""
    for field, value in fields_of(raw):
        if field == 1:
            return Ready()
        if field == 2:
            return Invocation(value)
        parts = dict(fields_of(value))
        if field == 3:
            return Piece(parts.get(1, 0), parts.get(2, b""))
        if field == 4:
            return Cancelled(parts.get(1, 0))
        if field == 5:
            return Dropped(parts.get(1, 0))
    return None


def answer(call: int, results: Sequence[Any]) -> Iterator[bytes]:
    """Yields the messages of an answer; a result is None for a token."""
    import numpy as np  # noqa: PLC0415 - as above

    arrays = [None if one is None else np.asarray(one) for one in results]
    head = number_field(1, call) + b"".join(bytes_field(2, _type(array)) for array in arrays)
    data = [
        np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for a in arrays if a is not None
    ]
    whole = data[0] if len(data) == 1 else memoryview(b"".join(data))
    yield bytes_field(1, head + bytes_field(3, whole[:_PIECE]))
    for start in range(_PIECE, len(whole), _PIECE):
        yield bytes_field(2, number_field(1, call) + bytes_field(2, whole[start : start + _PIECE]))


def failure(call: int, error: BaseException) -> bytes:
    """Makes the message that answers a call with an error."""
    # (The first frame belongs to this project.)
    rest = error.__traceback__.tb_next if error.__traceback__ else None
    name = type(error).__name__
    texts = (
        name,
        _shown(name, lambda: str(error)),
        _shown(
            name, lambda: "".join(traceback.format_exception(type(error), error, rest)).rstrip()
        ),
    )
    encoded = b"".join(
        bytes_field(number, _shortened(text).encode(errors="replace"))
        for number, text in enumerate(texts, 1)
    )
    return bytes_field(1, number_field(1, call) + bytes_field(4, encoded))


def _shown(name: str, text: Callable[[], str]) -> str:
    """Returns the text of an error, even if the error's own code fails."""
    try:
        return text()
    except Exception as problem:  # noqa: BLE001 - without an answer the program would wait for ever
        return f"{name} (its text cannot be shown: {type(problem).__name__})"


def _shortened(text: str) -> str:
    """Returns a text, or its two ends: a traceback may be long, and so may a message."""
    if len(text) <= _MOST_TEXT:
        return text
    half = _MOST_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters omitted]\n{text[-half:]}"


def dtype_of(name: str) -> Any:
    """Returns numpy's type of a name in numpy or ml_dtypes."""
    import ml_dtypes  # noqa: PLC0415 - as above
    import numpy as np  # noqa: PLC0415 - as above

    return np.dtype(getattr(ml_dtypes, name, name))


def _nbytes(name: str, shape: tuple[int, ...]) -> int:
    return 0 if name == _TOKEN else math.prod(shape) * int(dtype_of(name).itemsize)


def _type(array: Any) -> bytes:
    if array is None:
        return bytes_field(1, _TOKEN.encode())
    dims = b"".join(map(_varint, array.shape))
    return bytes_field(1, array.dtype.name.encode()) + (bytes_field(2, dims) if dims else b"")


def _read_type(raw: bytes) -> tuple[str, tuple[int, ...]]:
    name, dims = "", []
    for field, value in fields_of(raw):
        if field == 1:
            name = value.decode()
        elif isinstance(value, int):
            dims.append(value)
        else:
            position = 0
            while position < len(value):
                number, position = _read_varint(value, position)
                dims.append(number)
    return name, tuple(dims)


# ---- protobuf's encoding (see "Encoding" in its documentation)


def fields_of(raw: bytes) -> Iterator[tuple[int, Any]]:
    """Yields the number and the value of each field of a message: an int, or bytes."""
    position = 0
    while position < len(raw):
        key, position = _read_varint(raw, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _read_varint(raw, position)
            yield key >> 3, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if length is None:
            length, position = _read_varint(raw, position)
        yield key >> 3, raw[position : position + length]
        position += length


def _read_varint(raw: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def number_field(field: int, value: int) -> bytes:
    """Encodes a field of an integer, which is not negative."""
    return _varint(field << 3 | _VARINT) + _varint(value)


def bytes_field(field: int, value: bytes | memoryview) -> bytes:
    """Encodes a field of bytes, of a text, or of a message."""
    return b"".join((_varint(field << 3 | _BYTES), _varint(len(value)), value))
