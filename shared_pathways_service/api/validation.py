"""Checks single values, for requests and options: each check returns the value or raises.

Unlike in Python, a bool is not a number here, nor a number a bool: ``count=True`` is a mistake.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from shared_pathways_service.errors import InvalidRequestError

__all__ = [
    "check_bool",
    "check_context",
    "check_dns_label",
    "check_duration",
    "check_int",
    "check_json",
    "check_optional_text",
    "check_port",
    "check_seconds",
    "check_text",
    "fitting_text",
    "server_url",
]

#: Maximum length of a text in a message, in characters.
TEXT_LIMIT: Final = 256

DNS_LABEL_LIMIT: Final = 63
_DURATION: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[smh]?)")
_UNIT_S: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def check_bool(field: str, value: object) -> bool:
    """Returns True or False; refuses anything else, including 0 and 1."""
    if isinstance(value, bool):
        return value
    raise InvalidRequestError(field, value, "True or False")


def check_int(field: str, value: object, *, low: int, high: int | None = None) -> int:
    """Returns an integer from `low` to `high`, inclusive."""
    if not isinstance(value, bool) and isinstance(value, numbers.Integral):
        number = int(value)
        if number >= low and (high is None or number <= high):
            return number
    limits = f"from {low} up" if high is None else f"from {low} to {high}"
    raise InvalidRequestError(field, value, f"a whole number {limits}")


def check_json(field: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns data that JSON preserves: no tuples, only texts as keys, only finite numbers."""
    wanted = "what JSON gives back unchanged: objects, lists, texts, numbers"
    try:
        same = bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(field, value, wanted, hint=str(error)) from error
    if same:
        return value
    raise InvalidRequestError(field, value, wanted)


def check_seconds(
    field: str, value: object, *, zero: bool = True, infinity: bool = False, high: float = math.inf
) -> float:
    """Returns seconds as a float, from 0 up (or above 0) to `high`, perhaps infinite."""
    if not isinstance(value, bool) and isinstance(value, numbers.Real):
        seconds = float(value)
        enough = seconds >= 0 if zero else seconds > 0
        if enough and seconds <= high and (infinity or math.isfinite(seconds)):
            return seconds
    kind = "number of seconds, infinity too" if infinity else "finite number of seconds"
    most = f", and {high:.0f} at the most" if math.isfinite(high) else ""
    raise InvalidRequestError(field, value, f"a {kind}, {'0 or more' if zero else 'above 0'}{most}")


def check_duration(field: str, value: object, *, low: float, high: float) -> float:
    """Returns a number of seconds from `low` to `high`; a text may have a unit, as ``30m``."""
    seconds = math.nan
    if isinstance(value, str):
        if match := _DURATION.fullmatch(value):
            seconds = float(match["number"]) * _UNIT_S[match["unit"]]
    elif not isinstance(value, bool) and isinstance(value, numbers.Real):
        seconds = float(value)
    if low <= seconds <= high:
        return seconds
    expected = "a number of seconds, or a text such as '90s', '30m' or '2h'"
    raise InvalidRequestError(field, value, f"{expected}: from {low:.0f} to {high:.0f} seconds")


def check_port(field: str, value: object) -> int:
    """Returns a port from 0 (any) to 65535."""
    return check_int(field, value, low=0, high=65535)


def check_optional_text(field: str, value: object) -> str | None:
    """Returns None, or a non-empty text without blanks and control characters."""
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and re.fullmatch(r"\S+", value):
        return value
    raise InvalidRequestError(field, value, "a name without blanks, or None")


def check_context(value: object) -> str | None:
    """Returns None, or the name of a kubeconfig context, which may have blanks."""
    if value is None:
        return None
    if isinstance(value, str) and value.isprintable() and value.strip():
        return value
    raise InvalidRequestError("context", value, "the name of a kubeconfig context, or None")


def check_text(field: str, value: str) -> str:
    """Returns a text of a message, e.g. a reason; it may be empty."""
    if len(value) > TEXT_LIMIT or not value.isprintable():
        raise InvalidRequestError(
            field, value[:TEXT_LIMIT], f"at most {TEXT_LIMIT} printable characters"
        )
    return value


def fitting_text(text: str) -> str:
    """Returns what `check_text` accepts of any text: cut, and with blanks for other characters."""
    return "".join(one if one.isprintable() else " " for one in text[:TEXT_LIMIT])


def server_url(text: str) -> SplitResult | None:
    """Returns the parts of the URL of an API server; None: it is none."""
    try:
        url = urlsplit(text)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return None
    return url if is_valid else None


def check_dns_label(
    field: str, value: object, *, limit: int = DNS_LABEL_LIMIT, why: str = ""
) -> str:
    """Returns a DNS label (RFC 1123): lower-case letters, digits and inner hyphens.

    `why` explains a lower limit in the error.
    """
    if isinstance(value, str) and len(value) <= limit and _DNS_LABEL.fullmatch(value):
        return value
    expected = f"a DNS label: a-z, 0-9 and inner '-', at most {limit} characters"
    raise InvalidRequestError(field, value, f"{expected} ({why})" if why else expected)
