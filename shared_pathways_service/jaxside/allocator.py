"""glibc's allocator, set so that memory once touched is used again.

JAX's client takes fresh memory for each array that is fetched, and glibc gives large pieces back to
the system at once: most of a fetch's time is the kernel's, which clears the pages anew. With these
settings a process keeps what it had (its peak stays its size), and all its threads share one arena.
Measured in `benchmarks/proxy`; on other C libraries than glibc they do nothing.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping

__all__ = ["ENVIRONMENT", "tune"]

#: For a process that is about to be started. (40 GB: never.)
ENVIRONMENT: Mapping[str, str] = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "40000000000",
}
#: The same for `mallopt`: parameters as in malloc.h. (-1: never.)
_PARAMETERS = {-8: 1, -4: 0, -1: -1}


@functools.cache
def tune() -> bool:
    """Sets the allocator of this process, for good; memory that is in use stays as it is.

    Returns:
      Whether it could be set.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False  # not glibc
    answers = [mallopt(parameter, value) for parameter, value in _PARAMETERS.items()]
    return answers == [1] * len(answers)
