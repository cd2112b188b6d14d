"""Tracks the position in a log that is read on after its stream broke."""

from __future__ import annotations

import datetime
import re
from typing import Final

from shared_pathways_service.cluster_state.log_lines import split_line

__all__ = ["LogCursor"]

_STAMP: Final = re.compile(r"(?P<second>[^.]+?)(\.(?P<fraction>\d+))?(?P<zone>Z|[-+]\d\d:\d\d)")


class LogCursor:
    """Passes each line of a log on once, although a new stream repeats lines of the old one.

    Streams are requested with times before the lines and from a second on (``timestamps=true``,
    ``sinceTime``), so a new stream repeats the lines of that second.

    Attributes:
      since: The value for ``sinceTime``; empty before the first line: the whole log.
    """

    def __init__(self) -> None:
        self.since = ""
        self._last = (0, 0)
        self._seen_at_last = 0
        self._repeated = 0

    def restart(self) -> None:
        """Starts a new stream."""
        self._repeated = 0

    def take(self, line: str) -> str | None:
        """Returns the line without its time; None if it was passed on before.

        A line without a time is always passed on.
        """
        stamp, text = split_line(line)
        moment = _nanoseconds(stamp)
        if moment is None:
            return line
        if moment < self._last:
            return None
        if moment > self._last:
            self._last, self._seen_at_last, self._repeated = moment, 1, 1
            self.since = stamp
            return text
        self._repeated += 1
        if self._repeated <= self._seen_at_last:
            return None
        self._seen_at_last = self._repeated
        return text


def _nanoseconds(stamp: str) -> tuple[int, int] | None:
    """Returns seconds since 1970 and nanoseconds."""
    found = _STAMP.fullmatch(stamp)
    if found is None:
        return None
    zone = "+00:00" if found["zone"] == "Z" else found["zone"]
    try:
        second = datetime.datetime.fromisoformat(found["second"] + zone)
    except ValueError:
        return None
    return int(second.timestamp()), int((found["fraction"] or "0")[:9].ljust(9, "0"))
