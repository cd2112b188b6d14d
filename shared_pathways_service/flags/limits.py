"""Declares the limits of a proxy as flags of the proxy and of the service that starts it."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.api.proxy_limits import LARGEST_LIMIT, LIMITS, ProxyLimits
from shared_pathways_service.flags.parsing import flag
from shared_pathways_service.runtime.machine_memory import usable_memory

__all__ = ["default_host_memory", "limit_flag", "limits_of"]

#: The limit with a default that depends on the machine.
_HOST_MEMORY = "host_memory_limit_bytes"


def limit_flag(name: str) -> Any:
    """Declares the field of a limit; that of host memory is None unless it is set."""
    limit = LIMITS[name]
    default = None if name == _HOST_MEMORY else getattr(ProxyLimits, name)

    def read(text: str) -> int:
        if not text.isdecimal() or not limit.least <= int(text) <= LARGEST_LIMIT:
            raise ValueError(f"a whole number from {limit.least} to {LARGEST_LIMIT}")
        return int(text)

    return flag(default, parse=read, env=limit.variable, help=limit.help)


def limits_of(options: object) -> ProxyLimits:
    """Returns the limits from options that have a field for each."""
    given = {name: getattr(options, name) for name in LIMITS}
    if given[_HOST_MEMORY] is None:
        given[_HOST_MEMORY] = default_host_memory()
    return ProxyLimits(**given)


def default_host_memory() -> int:
    """Returns half of the memory that this process may use, in bytes."""
    return usable_memory() // 2
