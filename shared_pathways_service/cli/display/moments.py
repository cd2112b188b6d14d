"""Parses times that are typed (``90s``, ``1h``, ``7d``, or RFC 3339), and formats times to read."""

from __future__ import annotations

import math
import re
import time
from datetime import UTC, datetime

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.scheduling.book.decisions import span

__all__ = ["ago", "parse_coming", "parse_moment", "shown"]

_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


def parse_moment(field: str, text: str | None) -> float:
    """Parses a past time into the form of the resource manager's requests.

    Args:
      field: The option, for errors.
      text: A span before now with its unit (s, m, h, d, w; none: seconds), or a time in the form of
        RFC 3339, in UTC if it has no zone; None: no limit.

    Returns:
      Seconds since the epoch; negative: seconds before now, by the service's clock; 0: no limit.

    Raises:
      InvalidRequestError: The text has another form.
    """
    if text is None:
        return 0.0
    expected = "a span such as 90s, 1h or 7d, or a time such as 2026-01-31T12:00:00Z"
    if found := _SPAN.fullmatch(text.strip()):
        moment = -float(found[1]) * _SECONDS[found[2]]
    else:
        try:
            given = datetime.fromisoformat(text.strip())
        except ValueError:
            raise InvalidRequestError(field, text, expected) from None
        moment = (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()
        if moment < 0:
            raise InvalidRequestError(field, text, "a time since 1970")
    if not moment:
        # 0 means no limit.
        raise InvalidRequestError(field, text, "more than 0 seconds")
    return moment


def parse_coming(field: str, text: str) -> float:
    """Parses a future time into the form of the resource manager's requests.

    Args:
      field: The option, for errors.
      text: A span from now with its unit, as ``2h`` or ``in 2h``, ``now``, or a time in the form of
        RFC 3339, in UTC if it has no zone.

    Returns:
      Seconds since the epoch; negative: seconds from now, by the service's clock; 0: now.

    Raises:
      InvalidRequestError: The text has another form.
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


def ago(moment: str | None, now: float | None = None) -> str:
    """Returns how long ago an RFC 3339 time was, e.g. ``12 s ago``; ``-`` for None.

    Args:
      moment: The time.
      now: Seconds since the epoch. By default the time of the call.
    """
    if not moment:
        return "-"
    now = time.time() if now is None else now
    passed = now - datetime.fromisoformat(moment).timestamp()
    # The clocks of two machines may differ.
    return "now" if passed < 1.0 else f"{span(math.floor(passed))} ago"
