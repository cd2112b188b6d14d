"""Moments and spans of time as they are typed: ``90s``, ``1h``, ``7d``, or RFC 3339."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["parse_coming", "parse_moment", "shown"]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def parse_moment(field: str, text: str | None) -> float:
    """Returns a moment as the resource manager takes it.

    Args:
      field: For the error.
      text: A span before now with its unit (s, m, h, d, w; none: seconds), or a time as RFC 3339
        has it, in UTC where it names no zone; None: no limit.

    Returns:
      Seconds since the epoch; negative: so many before now, by the service's clock; 0: no limit.

    Raises:
      InvalidRequestError: It is neither.
    """
    if text is None:
        return 0.0
    expected = "a span such as 90s, 1h or 7d, or a time such as 2026-01-31T12:00:00Z"
    if found := _SPAN.fullmatch(text.strip()):
        moment = -float(found[1]) * _SECONDS[found[2]]
    else:
        try:
            time = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InvalidRequestError(field, text, expected) from None
        moment = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        if moment < 0:
            raise InvalidRequestError(field, text, "a time since 1970")
    if not moment:
        # It would be taken for no limit.
        raise InvalidRequestError(field, text, "more than 0 seconds")
    return moment


def parse_coming(field: str, text: str) -> float:
    """Returns a moment to come as the resource manager takes it.

    Args:
      field: For the error.
      text: A span from now with its unit, as ``2h`` or ``in 2h``, ``now``, or a time as RFC 3339
        has it, in UTC where it names no zone.

    Returns:
      Seconds since the epoch; negative: so many from now, by the service's clock; 0: now.

    Raises:
      InvalidRequestError: It is none of these.
    """
    words = text.strip().removeprefix("in ").strip()
    if words == "now":
        return 0.0
    try:
        return parse_moment(field, words)
    except InvalidRequestError:
        expected = "a span such as `in 2h`, or a time such as 2026-01-31T12:00:00Z"
        raise InvalidRequestError(field, text, expected) from None


def shown(moment: str) -> str:
    """Returns an RFC 3339 time without its fraction, for people."""
    return re.sub(r"\.\d+Z$", "Z", moment)
