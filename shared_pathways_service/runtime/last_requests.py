"""What a process was doing when it ended, as it is written down: lines of one length.

Plain text, so that it can be read wherever it ends up, in a pod's status too: the first line says
what this is, ``at …`` is what was being done, a number with a text one of the last requests.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Final

__all__ = ["HEADER", "Unfinished", "explained", "parse_unfinished", "printable"]

#: The first line.
HEADER: Final = "what this process does, and its last requests:"
_REQUEST: Final = re.compile(r"(\d{1,18}) (.+)")
#: Requests that an error names.
_REQUESTS_SHOWN: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What a process left when it ended.

    Attributes:
      running: What was being done, e.g. ``jit_step on slice 0``.
      requests: The last requests, oldest first.
    """

    running: tuple[str, ...]
    requests: tuple[str, ...]


def parse_unfinished(text: str) -> Unfinished | None:
    """Reads the lines; None: it is something else."""
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
    """Returns how a process ended, with what it was at; the former alone if nobody had used it."""
    if not unfinished.requests:
        return reason
    at = f" while it was at {' and '.join(unfinished.running)}" if unfinished.running else ""
    newest = ", ".join(reversed(unfinished.requests[-_REQUESTS_SHOWN:]))
    return f"{reason}{at}; its last requests, the newest first: {newest}"


def printable(text: str) -> str:
    """Returns a text with ``?`` for what cannot be shown."""
    return "".join(c if c.isprintable() else "?" for c in text)
