"""Resource limits of one proxy: the operator's, and lower ones requested by a tenant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from shared_pathways_service.api.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["LARGEST_LIMIT", "LIMITS", "Limit", "ProxyLimits", "asked_limits", "check_limit"]

#: The largest number that messages, command lines and JSON can all represent.
LARGEST_LIMIT: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """The limits of a proxy, which `LIMITS` describes; the names are those of its flags."""

    device_memory_limit_bytes: int = 0
    host_memory_limit_bytes: int = 0
    max_handles: int = 1_000_000
    max_requests: int = 16_384
    max_message_bytes: int = 256 << 20
    max_sessions: int = 32
    trace_s: int = 600
    trace_bytes: int = 64 << 20

    def lowered(self, asked: Mapping[str, int]) -> ProxyLimits:
        """Returns these limits, some of them lowered; raises InvalidRequestError."""
        for name, value in asked.items():
            check_limit("proxy_options", name, value)
            most = getattr(self, name)
            if most and value > most:
                raise InvalidRequestError(
                    "proxy_options",
                    f"{name}:{value}",
                    f"at most {most}, which this service gives (`sps serve` --"
                    f"{name.replace('_', '-')})",
                )
        return dataclasses.replace(self, **asked)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limit:
    """The operator's setting of one limit; `none` means that 0 stands for no limit."""

    name: str
    help: str
    none: bool = False

    @property
    def variable(self) -> str:
        """The environment variable that applies if the flag is not given."""
        return f"SPS_{self.name.upper()}"

    @property
    def least(self) -> int:
        """The lowest value that an operator may set."""
        return 0 if self.none else 1


#: Limits by name.
LIMITS: Final[Mapping[str, Limit]] = {
    limit.name: limit
    for limit in (
        Limit(
            name="device_memory_limit_bytes",
            help="Limit the memory of a proxy's arrays and running programs on each device; 0: no "
            "limit.",
            none=True,
        ),
        Limit(
            name="host_memory_limit_bytes",
            help="Limit the memory of a proxy's host buffers, of all sessions together; 0: no "
            "limit. [default: half of the machine's memory]",
            none=True,
        ),
        Limit(
            name="max_handles",
            help="Limit the arrays, programs, executions and futures that a session has open.",
        ),
        Limit(
            name="max_requests",
            help="Limit the unanswered requests of a session; at the limit no more are read.",
        ),
        Limit(
            name="max_message_bytes",
            help="Limit the length of a request; the longest are programs with their constants.",
        ),
        Limit(name="max_sessions", help="Limit the concurrent sessions of a proxy."),
        Limit(name="trace_s", help="Limit the seconds of a profile of a proxy and its executors."),
        Limit(
            name="trace_bytes",
            help="Limit the bytes of such a profile, of which each process gets an equal part; the "
            "proxy computes for most of a minute with 64 MiB.",
        ),
    )
}


def check_limit(field: str, name: str, value: object) -> int:
    """Checks a limit that a tenant requests: an integer from 1 up, not "no limit"."""
    try:
        return check_int(field, value, low=1, high=LARGEST_LIMIT)
    except InvalidRequestError as error:
        raise InvalidRequestError(field, f"{name}:{value}", error.expected) from None


def asked_limits(source: object) -> dict[str, int]:
    """Returns an object's limits by name, from its attributes, without those that are 0 or None."""
    return {name: value for name in LIMITS if (value := getattr(source, name))}
