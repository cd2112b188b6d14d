"""glibc's allocator, set so that memory once touched is used again.

glibc gives large pieces back to the system as soon as they are freed, and most of the time of a
large transfer is then the kernel's, which clears pages anew for the next one. With these settings a
process keeps what it had. Measured in `benchmarks/proxy`; on other C libraries than glibc they do
nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping

__all__ = ["ENVIRONMENT", "keep", "keep_all", "trim"]

#: What `keep_all` does, for a process that is about to be started. (40 GB: never.)
ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "40000000000",
}
#: Parameters of `mallopt`, as in malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = -1


@functools.cache
def keep_all() -> bool:
    """Has this process keep all memory that it ever had, in one arena, for good.

    Memory that is in use stays as it is. The peak of a process stays its size.

    Returns:
      Whether it could be set.
    """
    return _set({_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: _NEVER})


def keep(nbytes: int) -> bool:
    """Has this process keep so much free memory at the end of its heap, where large blocks lie.

    Args:
      nbytes: Less than 2 GiB.

    Returns:
      Whether it could be set.
    """
    return _set({_MMAP_MAX: 0, _TRIM_THRESHOLD: nbytes})


def trim() -> None:
    """Gives free memory back to the system, wherever in the heap it lies."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


def _set(parameters: Mapping[int, int]) -> bool:
    library = _glibc()
    if library is None:
        return False
    answers = [library.mallopt(name, value) for name, value in parameters.items()]
    return answers == [1] * len(answers)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
        # Of others one may be there, and do nothing.
        library.gnu_get_libc_version  # noqa: B018
    except (OSError, AttributeError):
        return None
    return library
