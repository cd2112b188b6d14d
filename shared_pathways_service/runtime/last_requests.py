"""Formats and parses the record of what a process was doing when it ended.

The record is plain text with lines of equal length, readable also in a pod's status. The first line
is a header, ``at …`` is a running operation, and a number with a text is one of the last requests.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

__all__ = ["HEADER", "Unfinished", "explained", "parse_unfinished", "printable"]

#: The first line.
HEADER: Final = "what this process does, and its last requests:"
_REQUEST: Final = re.compile(r"(\d{1,18}) (.+)")
#: Requests that an error lists.
_REQUESTS_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """The running operations of a process that ended, and its last requests, oldest first."""

    running: tuple[str, ...]
    requests: tuple[str, ...]


def parse_unfinished(text: str) -> Unfinished | None:
    """Parses a record; None: the text is not one."""
    first, *lines = text.split("\n")
    if first.strip() != HEADER:
        return None
    running, requests = [], []
    for line in map(str.strip, lines):
        if line.startswith("at "):
            running.append(printable(line.removeprefix("at ")))
        elif found := _REQUEST.fullmatch(line):
            requests.append((int(found[1]), printable(found[2])))
    return Unfinished(
        running=tuple(running), requests=tuple(request for _, request in sorted(requests))
    )


def explained(reason: str, unfinished: Unfinished) -> str:
    """Returns how a process ended, with its running operations and last requests if any."""
    if not unfinished.requests:
        return reason
    at = f" while it was running {' and '.join(unfinished.running)}" if unfinished.running else ""
    newest = ", ".join(reversed(unfinished.requests[-_REQUESTS_SHOWN:]))
    return f"{reason}{at}; its last requests, newest first: {newest}"


def printable(text: str) -> str:
    """Replaces unprintable characters by ``?``."""
    return "".join(c if c.isprintable() else "?" for c in text)
