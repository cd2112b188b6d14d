"""Messages of the callback protocol: arguments to the client, results from it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument

__all__ = [
    "AHEAD_BYTES",
    "BYTES_OF_ANY_LENGTH",
    "CallbackTypes",
    "Results",
    "ValueType",
    "argument_bytes",
    "call_messages",
    "zeros",
]

#: Bytes of arguments up to which XLA need not wait for a call.
AHEAD_BYTES = 256 << 10
#: Bytes of arrays in one message.
_PIECE = 1 << 20
_TOKEN = "token"  # noqa: S105 - a type


@dataclasses.dataclass(frozen=True, slots=True)
class ValueType:
    """Type of an argument or result; a token has no numpy type."""

    dtype: Any
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its data."""
        return 0 if self.dtype is None else math.prod(self.shape) * int(self.dtype.itemsize)

    def __str__(self) -> str:
        return _TOKEN if self.dtype is None else f"{self.dtype.name}{list(self.shape)}"


@dataclasses.dataclass(frozen=True, slots=True)
class CallbackTypes:
    """The arguments and results of a callback, as the program declares them."""

    arguments: tuple[ValueType, ...]
    results: tuple[ValueType, ...]


#: The types of a call at compile time, whose answer is one message; the shape is the largest.
BYTES_OF_ANY_LENGTH = ValueType(np.dtype(np.uint8), (16 << 20,))


def argument_bytes(arguments: Sequence[Any]) -> int:
    """Returns the bytes of a call's arguments; None stands for a token."""
    return sum(0 if a is None else a.nbytes for a in arguments)


def call_messages(
    call: int, program: int, callback: int, arguments: Sequence[Any], lane: int = 0
) -> Iterator[bytes]:
    """Yields the messages of one call, whose arguments are numpy arrays, or None for tokens.

    Calls of the same lane are made one after another; lane 0 is none.
    """
    message = pb.CallbackProxyMessage()
    invocation = message.invocation
    invocation.call, invocation.program, invocation.callback = call, program, callback
    invocation.lane = lane
    if not arguments:
        yield message.SerializeToString()
        return
    for argument in arguments:
        if argument is None:
            invocation.arguments.add(dtype=_TOKEN)
        else:
            invocation.arguments.add(dtype=argument.dtype.name, shape=argument.shape)
    pieces = _pieces([_bytes_of(a) for a in arguments if a is not None])
    invocation.data = next(pieces, b"")
    yield message.SerializeToString()
    for data in pieces:
        piece = pb.CallbackPiece(call=call, data=data)
        yield pb.CallbackProxyMessage(piece=piece).SerializeToString()


def zeros(types: Sequence[ValueType]) -> tuple[Any, ...]:
    """Returns zeros in place of unused results; None for tokens."""
    return tuple(None if one.dtype is None else np.zeros(one.shape, one.dtype) for one in types)


def _bytes_of(array: Any) -> memoryview:
    data: memoryview = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return data


def _pieces(buffers: Sequence[memoryview]) -> Iterator[bytes]:
    """Yields the bytes of all buffers, in pieces of one message each."""
    small: list[memoryview] = []
    room = _PIECE
    for buffer in buffers:
        start = 0
        while start < len(buffer):
            part = buffer[start : start + room]
            small.append(part)
            start += len(part)
            room -= len(part)
            if not room:
                yield b"".join(small)
                small, room = [], _PIECE
    if small:
        yield b"".join(small)


class Results:
    """The results of one call, which arrive in pieces and must be as declared."""

    def __init__(self, expected: Sequence[ValueType], answer: pb.CallbackAnswer) -> None:
        # (A program may declare an equal type of its own, whose length is fixed.)
        if len(expected) == 1 and expected[0] is BYTES_OF_ANY_LENGTH:
            expected = _announced(answer)
        found = [_type_text(result) for result in answer.results]
        wanted = [str(one) for one in expected]
        if found != wanted:
            raise _wrong(
                f"its client answered {', '.join(found)[:300] or 'nothing'}, "
                f"not {', '.join(wanted) or 'nothing'}"
            )
        self._expected = expected
        self._buffer = np.empty(sum([one.nbytes for one in expected]), np.uint8)
        self._filled = 0
        self.add(answer.data)

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived."""
        return self._filled == len(self._buffer)

    def add(self, data: bytes) -> None:
        """Adds bytes."""
        end = self._filled + len(data)
        if end > len(self._buffer):
            raise _wrong(f"its client answered more than {len(self._buffer)} bytes")
        if data:
            self._buffer[self._filled : end] = np.frombuffer(data, np.uint8)
            self._filled = end

    def arrays(self) -> tuple[Any, ...]:
        """Returns the arrays; None for tokens."""
        found: list[Any] = []
        start = 0
        for one in self._expected:
            data = self._buffer[start : start + one.nbytes]
            start += one.nbytes
            found.append(None if one.dtype is None else _array(data, one))
        return tuple(found)


def _announced(answer: pb.CallbackAnswer) -> Sequence[ValueType]:
    """Returns how many bytes an answer announces; the largest type's if that is too long."""
    shapes = [tuple(result.shape) for result in answer.results]
    if len(shapes) != 1 or len(shapes[0]) != 1 or shapes[0] > BYTES_OF_ANY_LENGTH.shape:
        return (BYTES_OF_ANY_LENGTH,)
    return (ValueType(BYTES_OF_ANY_LENGTH.dtype, shapes[0]),)


def _array(data: np.ndarray, one: ValueType) -> Any:
    if one.dtype == np.bool_:
        # XLA reads each as 0 or 1.
        return (data != 0).reshape(one.shape)
    if data.ctypes.data % one.dtype.alignment:
        data = data.copy()
    return data.view(one.dtype).reshape(one.shape)


def _type_text(array: pb.CallbackArray) -> str:
    return array.dtype if array.dtype == _TOKEN else f"{array.dtype}{list(array.shape)}"


def _wrong(text: str) -> StatusError:
    return invalid_argument(f"a callback failed: {text}")
