"""What one proxy gives its clients at most: the operator's limits, and lower ones of a tenant's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from shared_pathways_service.api.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["LARGEST_LIMIT", "LIMITS", "Limit", "ProxyLimits", "asked_limits", "check_limit"]

#: The largest number that every part can hold: messages, command lines, JSON.
LARGEST_LIMIT: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """The limits of a proxy; the names are those of its flags.

    Attributes:
      device_memory_limit_bytes: Of each device; 0: none.
      host_memory_limit_bytes: Of host buffers on their way in or out, all sessions; 0: none.
      max_handles: Arrays, programs, executions and futures that a session may have open.
      max_requests: Requests of a session that are read and not answered.
      max_message_bytes: Of one request.
      max_sessions: At a time.
    """

    device_memory_limit_bytes: int = 0
    host_memory_limit_bytes: int = 0
    max_handles: int = 1_000_000
    max_requests: int = 16_384
    max_message_bytes: int = 256 << 20
    max_sessions: int = 32

    def lowered(self, asked: Mapping[str, int]) -> ProxyLimits:
        """Returns these limits with lower ones in their place.

        Args:
          asked: Limits by name.

        Raises:
          InvalidRequestError: One is higher than this, or than any can be.
        """
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
    """How an operator sets one of them.

    Attributes:
      name: Of the proxy's flag.
      help: What it bounds.
      none: Whether 0 stands for no limit.
    """

    name: str
    help: str
    none: bool = False

    @property
    def variable(self) -> str:
        """The variable that is looked at where the flag is not given."""
        return f"SPS_{self.name.upper()}"

    @property
    def least(self) -> int:
        """What an operator may set at least."""
        return 0 if self.none else 1


#: By name.
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
    )
}


def check_limit(field: str, name: str, value: object) -> int:
    """Returns a limit that a tenant asks for; "no limit" is nothing to ask for.

    Args:
      field: What to call it in an error.
      name: Of the limit.
      value: What was given.

    Raises:
      InvalidRequestError: It is no whole number from 1 up.
    """
    try:
        return check_int(field, value, low=1, high=LARGEST_LIMIT)
    except InvalidRequestError as error:
        raise InvalidRequestError(field, f"{name}:{value}", error.expected) from None


def asked_limits(source: object) -> dict[str, int]:
    """Returns what is asked for, by name, of what has the limits as attributes (0, None: not)."""
    return {name: value for name in LIMITS if (value := getattr(source, name))}
