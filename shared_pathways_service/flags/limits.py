"""The limits of a proxy as flags, of itself and of the service that starts it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared_pathways_service.api.proxy_limits import LARGEST_LIMIT, LIMITS, ProxyLimits
from shared_pathways_service.flags.parsing import flag

__all__ = ["default_host_memory", "limit_flag", "limits_of"]

#: The one whose default is not the same everywhere.
_OF_THE_MACHINE = "host_memory_limit_bytes"
_CGROUP_LIMITS = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)


def limit_flag(name: str) -> Any:
    """Declares the field of a limit; that of the host's memory is None where nobody set it."""
    limit = LIMITS[name]
    default = None if name == _OF_THE_MACHINE else getattr(ProxyLimits, name)

    def read(text: str) -> int:
        if not text.isdecimal() or not limit.least <= int(text) <= LARGEST_LIMIT:
            raise ValueError(f"a whole number from {limit.least} to {LARGEST_LIMIT}")
        return int(text)

    return flag(default, parse=read, env=limit.variable, help=limit.help)


def limits_of(options: object) -> ProxyLimits:
    """Returns the limits that options with a field for each of them set."""
    given = {name: getattr(options, name) for name in LIMITS}
    if given[_OF_THE_MACHINE] is None:
        given[_OF_THE_MACHINE] = default_host_memory()
    return ProxyLimits(**given)


def default_host_memory(read: Callable[[str], str] = lambda path: Path(path).read_text()) -> int:
    """Returns half of the memory that this process may have, in bytes.

    Args:
      read: Returns a file's text.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUP_LIMITS:
        try:
            text = read(path).strip()
        except OSError:
            continue
        # "max" where there is none, or a number above all memory.
        if text.isdecimal():
            memory = min(memory, int(text))
    return memory // 2
