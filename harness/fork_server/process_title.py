"""Sets what `/proc` shows as this process's command line and environment (Linux)."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from pathlib import Path

from harness.fork_server.c_library import call

__all__ = ["show_as"]

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
_FIELDS = "start_code end_code start_data end_data start_brk brk start_stack"
_SHOWN = "arg_start arg_end env_start env_end auxv"
#: Fields of /proc/PID/stat, counted from 1 (proc(5)).
_STAT = {
    "start_code": 26,
    "end_code": 27,
    "start_stack": 28,
    "start_data": 45,
    "end_data": 46,
    "start_brk": 47,
}
_NO_FILE = 0xFFFFFFFF

#: The memory that is shown.
_shown: list[mmap.mmap] = []


class _Map(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in f"{_FIELDS} {_SHOWN}".split()),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def show_as(arguments: Sequence[bytes], environment: Sequence[bytes]) -> None:
    """Shows these arguments and these ``NAME=value``.

    Raises:
      OSError: The kernel refuses (it has no CONFIG_CHECKPOINT_RESTORE).
    """
    texts = [b"".join(text + b"\0" for text in part) for part in (arguments, environment)]
    size = sum(map(len, texts))
    # (Of shared memory, /proc shows nothing.)
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(b"".join(texts))
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    fields = stat[stat.rindex(")") + 2 :].split()
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    wanted = _Map(
        **{name: int(fields[number - 3]) for name, number in _STAT.items()},
        brk=libc.sbrk(ctypes.c_long(0)),
        arg_start=start,
        arg_end=start + len(texts[0]),
        env_start=start + len(texts[0]),
        env_end=start + size,
        exe_fd=_NO_FILE,
    )
    length = ctypes.c_ulong(ctypes.sizeof(wanted))
    pointer = ctypes.byref(wanted)
    call("prctl", _PR_SET_MM, _PR_SET_MM_MAP, pointer, length, 0, subject="PR_SET_MM_MAP")
    _shown[:] = [memory]
