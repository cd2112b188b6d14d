"""Holds a race of JAX's client open, so that a few rounds show it.

`RpcHelper::Batcher::Finish` of jaxlib checks whether there is a thread pool, and destroys it. Two
threads that are both between the check and its reset, a few instructions apart, destroy it twice.
The change of the code in this process's memory lets the first thread wait there for a second one.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import jaxlib._ifrt_proxy  # noqa: F401 - loads the code that is changed

__all__ = ["NoWindow", "RaceWindow"]

#: cmp byte [r14+0x90], 0; je +17; and then what moves: lea rdi, [r14+0x68]; mov byte [r14+0x90], 0;
#: call.
_CODE = re.compile(re.escape(bytes.fromhex("4180be9000000000 7411 498d7e68 41c6869000000000 e8")))
_CHECK_BYTES, _MOVED_BYTES = 10, 12
#: Where the number of threads is, in the page of the added code.
_COUNT_AT = 256
_PAUSES_PER_S = 25e6
_READ_WRITE_RUN = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC


class NoWindow(Exception):  # noqa: N818 - reads as what happened
    """This release of jaxlib has other code."""


class RaceWindow:
    """The changed code.

    Args:
      seconds: How long a thread waits for a second one; of processor time.

    Raises:
      NoWindow: The code to change was not found.
    """

    def __init__(self, seconds: float) -> None:
        found = [start for part in _parts_of_jaxlib() for start in _found(*part)]
        if len(found) != 1:
            raise NoWindow(f"{len(found)} places in jaxlib have the code of the race")
        at = found[0] + _CHECK_BYTES
        self._page = mmap.mmap(
            -1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=_READ_WRITE_RUN
        )
        page = ctypes.addressof(ctypes.c_char.from_buffer(self._page))
        moved = ctypes.string_at(at, _MOVED_BYTES)
        code = b"".join(
            (
                b"\x48\xb8" + struct.pack("<Q", page + _COUNT_AT),  # mov rax, COUNT
                bytes.fromhex("f0ff00"),  # lock inc dword [rax]
                b"\xb9" + struct.pack("<I", int(seconds * _PAUSES_PER_S)),  # mov ecx, PAUSES
                # again: cmp dword [rax], 2; jae done; pause; dec ecx; jne again; done:
                bytes.fromhex("833802 7306 f390 ffc9 75f5"),
                moved,
                _jump(at + _MOVED_BYTES),
            )
        )
        self._page[: len(code)] = code
        _write(at, _jump(page))

    def clear(self) -> None:
        """Begins to count anew."""
        self._page[_COUNT_AT : _COUNT_AT + 4] = bytes(4)

    @property
    def entered(self) -> int:
        """Threads that have destroyed the pool; two is a race."""
        count: int = struct.unpack_from("<I", self._page, _COUNT_AT)[0]
        return count


def _parts_of_jaxlib() -> Iterator[tuple[int, int]]:
    """Yields where code of jaxlib is in memory."""
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            if "libjax_common" in line and "r-xp" in line:
                start, end = line.split()[0].split("-")
                yield int(start, 16), int(end, 16)


def _found(start: int, end: int) -> Iterator[int]:
    code = (ctypes.c_char * (end - start)).from_address(start)
    for match in _CODE.finditer(memoryview(code)):
        yield start + match.start()


def _jump(target: int) -> bytes:
    return b"\x48\xb8" + struct.pack("<Q", target) + b"\xff\xe0"  # mov rax, TARGET; jmp rax


def _write(at: int, code: bytes) -> None:
    """Changes code; no thread may run it yet."""
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.c_void_p(at & ~(mmap.PAGESIZE - 1))
    size = ctypes.c_size_t(2 * mmap.PAGESIZE)
    if libc.mprotect(start, size, _READ_WRITE_RUN):
        raise OSError(ctypes.get_errno(), "jaxlib's code cannot be changed")
    ctypes.memmove(at, code, len(code))
    libc.mprotect(start, size, mmap.PROT_READ | mmap.PROT_EXEC)
