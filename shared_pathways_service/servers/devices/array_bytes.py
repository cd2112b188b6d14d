"""The bytes of host arrays, in chunks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from shared_pathways_service.servers.devices.status_errors import Code, StatusError

__all__ = ["aligned_buffer", "chunks", "fill", "flat", "joined"]

#: The bytes of a message: with 256 KiB to 1 MiB gRPC is fastest.
_CHUNK = 1 << 20
#: From this alignment on, XLA's CPU client uses memory without a copy.
_ALIGNMENT = 64


def aligned_buffer(size: int) -> np.ndarray:
    """Returns `size` bytes, not initialised, aligned so that XLA can use them without a copy."""
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size]


def flat(array: np.ndarray) -> memoryview:
    """Returns the bytes of an array, without a copy if it is in C order."""
    return _bytes_of(np.ascontiguousarray(array)).data


def chunks(buffers: Iterable[memoryview]) -> Iterator[memoryview]:
    """Yields the bytes of buffers, one after the other, without a copy."""
    for buffer in buffers:
        for begin in range(0, len(buffer), _CHUNK):
            yield buffer[begin : begin + _CHUNK]


def joined(sizes: Iterable[int], data: Iterable[memoryview], what: str) -> list[memoryview]:
    """Returns buffers of these sizes, aligned, with the bytes that `chunks` made; as `fill`."""
    made = [aligned_buffer(size) for size in sizes]
    fill(made, iter(data), what)
    return [buffer.data for buffer in made]


def fill(targets: Iterable[np.ndarray], data: Iterator[bytes | memoryview], what: str) -> None:
    """Fills arrays with bytes, one after the other.

    Args:
      targets: The arrays.
      data: Their bytes, read to the end; none are of two arrays.
      what: What the bytes are, for the error.

    Raises:
      StatusError: These are more or fewer bytes.
    """
    for target in targets:
        is_plain = target.flags.c_contiguous
        whole = target if is_plain else np.empty(target.shape, target.dtype)
        flat = _bytes_of(whole)
        filled = 0
        while filled < flat.size:
            chunk = next(data, b"")
            if not 0 < len(chunk) <= flat.size - filled:
                raise _wrong_size(what)
            flat[filled : filled + len(chunk)] = np.frombuffer(chunk, np.uint8)
            filled += len(chunk)
        if not is_plain:
            target[...] = whole
    # (To its end: only then it is known to have ended well.)
    if next(data, None) is not None:
        raise _wrong_size(what)


def _wrong_size(what: str) -> StatusError:
    return StatusError(Code.INTERNAL, f"{what} has another number of bytes than was announced")


def _bytes_of(array: np.ndarray) -> np.ndarray:
    flat: np.ndarray = array.reshape(-1).view(np.uint8)
    return flat
