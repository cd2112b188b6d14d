"""Priorities by name or number.

The names are those of Kubernetes PriorityClasses. Their manifests are made from `PRIORITIES`, so
that a name means the same number to the cluster's scheduler and to ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from shared_pathways_service.api.request_fields import check_subdomain
from shared_pathways_service.api.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["PRIORITIES", "cluster_priority", "describe_priority", "parse_priority"]

#: Name to number; higher goes first. The default priority is 0.
PRIORITIES: Final[Mapping[str, int]] = MappingProxyType(
    {"low-priority-job": 1_000_000, "high-priority-job": 2_000_000}
)

#: A priority is a signed 32-bit integer, as on the wire and in Kubernetes.
_INT32 = 2**31


def parse_priority(value: object, *, field: str = "priority") -> int:
    """Returns the number of a priority: of a name of `PRIORITIES`, or 0 for None.

    Raises:
      InvalidRequestError: It is neither a name nor a number of 32 bits; the message lists the
      names.
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


def cluster_priority(value: object, *, field: str = "priority") -> tuple[int, str]:
    """Returns the number and the PriorityClass (if any) of a request to a cluster.

    Any PriorityClass may be named. If it is not in `PRIORITIES`, it counts as 0 until the cluster's
    value is read.
    """
    if isinstance(value, str) and not _is_number(value):
        name = value.strip()
        try:
            return PRIORITIES.get(name, 0), check_subdomain(field, name)
        except InvalidRequestError as error:
            known = ", ".join(PRIORITIES)
            expected = f"a number, one of {known}, or another PriorityClass of the cluster"
            raise InvalidRequestError(field, name, expected) from error
    return parse_priority(value, field=field), ""


def _is_number(text: str) -> bool:
    try:
        int(text)
    except ValueError:
        return False
    return True


def describe_priority(number: int) -> str:
    """Returns a priority for messages: its name if it has one, and its number."""
    for name, known in PRIORITIES.items():
        if known == number:
            return f"{name} ({number})"
    return str(number)
