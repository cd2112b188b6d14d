"""Where one is in a log that is read on after its stream broke."""

from __future__ import annotations

import datetime
import re
from typing import Final

from shared_pathways_service.cluster_state.log_lines import split_line

__all__ = ["LogCursor"]

_STAMP: Final = re.compile(r"(?P<second>[^.]+?)(\.(?P<fraction>\d+))?(?P<zone>Z|[-+]\d\d:\d\d)")


class LogCursor:
    """Passes each line of a log once, although a new stream repeats what the old one had.

    A stream is asked for with times before the lines and from a second on (``timestamps=true``,
    ``sinceTime``), so it repeats the lines of that second.

    Attributes:
      since: What to ask for as ``sinceTime``; empty before the first line: all of the log.
    """

    def __init__(self) -> None:
        self.since = ""
        self._last = (0, 0)
        self._seen_at_last = 0
        self._repeated = 0

    def restart(self) -> None:
        """A new stream begins."""
        self._repeated = 0

    def take(self, line: str) -> str | None:
        """Returns the line without its time; None for one that was passed before.

        Args:
          line: Of the log, with its time; one without a time is passed always.
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
