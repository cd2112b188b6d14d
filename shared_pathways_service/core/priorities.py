"""Priorities by name or number: the one place that says which names there are.

Named as PriorityClasses of Kubernetes are. In a cluster the manifests of the two are made from
`PRIORITIES`, so that a name means the same number to its scheduler and to ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shared_pathways_service.core.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["PRIORITIES", "describe_priority", "parse_priority"]

#: Name to number; higher goes first. Who names none has 0.
PRIORITIES: Final[Mapping[str, int]] = MappingProxyType(
    {"low-priority-job": 1_000_000, "high-priority-job": 2_000_000}
)

#: A priority is a signed number of 32 bits, as on the wire and in Kubernetes.
_INT32 = 2**31


def parse_priority(value: object, *, field: str = "priority") -> int:
    """Returns the number of a priority.

    Args:
      value: A number from -2,147,483,648 to 2,147,483,647, also as text; a name of `PRIORITIES`;
        None: 0.
      field: How the value is called where it was given.

    Raises:
      InvalidRequestError: It is none of these; the names that are known are listed.
    """
    if value is None:
        return 0
    if isinstance(value, str):
        name = value.strip()
        if name in PRIORITIES:
            return PRIORITIES[name]
        try:
            value = int(name)
        except ValueError:
            known = ", ".join(PRIORITIES)
            raise InvalidRequestError(field, name, f"a number, or one of {known}") from None
    return check_int(field, value, low=-_INT32, high=_INT32 - 1)


def describe_priority(number: int) -> str:
    """Returns a priority as people are told it: its name if it has one, and its number."""
    for name, known in PRIORITIES.items():
        if known == number:
            return f"{name} ({number})"
    return str(number)
