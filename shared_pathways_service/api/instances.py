"""Parses instance counts: as a mapping, on a command line, as a list of virtual slices."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from shared_pathways_service.api.slice_names import EXAMPLES, named_type
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "MAX_SLICES",
    "parse_instance_counts",
    "parse_instance_texts",
    "parse_instances",
]

#: More slices than any service has; guards against typing errors and long messages.
MAX_SLICES: Final = 4096

_MAPPING: Final = "a mapping of instance types to counts, e.g. {'tpuv6e:2x2': 2}"
_COUNT: Final = re.compile(r"[0-9]{1,9}")


def parse_instance_counts(
    value: object, *, field: str = "expected_tpu_instances"
) -> dict[InstanceType, int]:
    """Parses ``{"tpuv6e:2x2": 2}``, in the given order; its keys are names for `named_type`.

    Raises:
      InvalidRequestError: It is not a mapping, is empty, has an unknown type or the same type under
        two names, a count is not an integer from 1 up, or the sum exceeds `MAX_SLICES`.
    """
    if not isinstance(value, Mapping) or not value:
        raise InvalidRequestError(field, value, _MAPPING)
    counts: dict[InstanceType, int] = {}
    for text, count in value.items():
        kind = named_type(text, field=field)
        if kind in counts:
            raise InvalidRequestError(field, text, f"{kind} once")
        counts[kind] = _count(field, text, count)
    if sum(counts.values()) > MAX_SLICES:
        raise InvalidRequestError(field, value, f"at most {MAX_SLICES} slices in all")
    return counts


def _count(field: str, text: object, count: object) -> int:
    try:
        return check_int(field, count, low=1)
    except InvalidRequestError as error:
        expected = f"{error.expected} as the count of {text!r}"
        raise InvalidRequestError(field, count, expected) from None


def parse_instances(
    value: object, *, field: str = "expected_tpu_instances"
) -> tuple[InstanceType, ...]:
    """Parses ``expected_tpu_instances`` to one type per virtual slice, in order; empty for None."""
    if value is None:
        return ()
    counts = parse_instance_counts(value, field=field)
    return tuple(kind for kind, count in counts.items() for _ in range(count))


def parse_instance_texts(texts: Iterable[str], *, field: str = "--slices") -> dict[str, int]:
    """Parses the command line's form, ``tpuv6e:2x2=2``, repeated or separated by commas.

    Other names are accepted too (``v6e-16=1``). Returns a mapping with Pathways' names of the
    types, or raises InvalidRequestError.
    """
    counts: dict[str, int] = {}
    for text in texts:
        for part in text.split(","):
            name, equals, count = part.strip().partition("=")
            if not equals or not _COUNT.fullmatch(count):
                raise InvalidRequestError(field, part, f"TYPE=COUNT, with a TYPE like {EXAMPLES}")
            if name in counts:
                raise InvalidRequestError(field, part, f"{name} once")
            counts[name] = int(count)
    return {str(kind): count for kind, count in parse_instance_counts(counts, field=field).items()}
