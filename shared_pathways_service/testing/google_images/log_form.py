"""Replaces log lines of this project's servers by the lines of the images."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from shared_pathways_service.testing.google_images.log_texts import GUESSED, PUBLISHED, LogText

__all__ = ["googles_form", "serving_port"]

_GLOG: Final = re.compile(
    r"(?P<head>(?P<severity>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+) (?P<source>[^\s\]]+)\] "
)
#: For warnings and errors of this project, which keep their text.
_SOMEWHERE: Final = LogText(text="{text}", source="this project's own text")
_SERVES: Final = re.compile(r"Pathways (?P<what>Server|Proxy) serving on \S+:(?P<port>\d+)")


def serving_port(line: str) -> int | None:
    """Returns the port in the line of a server that begins to serve; None: another line."""
    prefix = _GLOG.match(line)
    found = _SERVES.fullmatch(line, prefix.end()) if prefix else None
    return int(found["port"]) if found else None


def googles_form(line: str) -> str | None:
    """Returns a line of a server's log in the image's format; None: the image has no such line.

    Lines that are not in glog's format, such as a crash's stack, are unchanged. Warnings and errors
    keep their text, which is for people.
    """
    prefix = _GLOG.match(line)
    if prefix is None:
        return line
    for ours, written in _FORMS.items():
        if found := ours.fullmatch(line, prefix.end()):
            text = written(found)
            return f"{prefix['head']} {text}" if text else None
    if prefix["severity"] == "I":
        return None
    return f"{prefix['head']} {_SOMEWHERE.line(text=line[prefix.end() :])}"


def _serves(found: re.Match[str]) -> str:
    if found["what"] == "Proxy":
        return PUBLISHED["the proxy serves"].line()
    return PUBLISHED["the server serves"].line(port=found["port"])


def _by(written: LogText) -> Callable[[re.Match[str]], str]:
    """Writes a text with the groups of a match as its values."""
    return lambda found: written.line(**found.groupdict())


#: Lines of this project's servers, and what the images write instead.
_FORMS: Final[Mapping[re.Pattern[str], Callable[[re.Match[str]], str | None]]] = {
    _SERVES: _serves,
    re.compile(r"\*\*\* (?P<count>\d+)/(?P<wanted>\d+) Pathways Slices Now Ready.*"): _by(
        PUBLISHED["slices are ready"]
    ),
    re.compile(r"MegaScale transport initialized\."): _by(PUBLISHED["the transport begins"]),
    re.compile(r"MegaScale transport init succeeded\."): _by(PUBLISHED["the transport is ready"]),
    re.compile(r"Signaling to RM (?P<address>\S+)"): _by(GUESSED["the proxy requests slices"]),
    re.compile(r"Waiting for placement at position \d+:.*"): _by(PUBLISHED["the proxy waits"]),
    re.compile(r"Transition slice (?P<index>\d+) unplaced -> placed\b.*"): _by(
        GUESSED["a slice is placed"]
    ),
    re.compile(r"Transition slice (?P<index>\d+) placed -> unplaced\b.*"): _by(
        GUESSED["a slice is lost"]
    ),
    re.compile(r".*\bFAILED_PRECONDITION\b:? ?(?P<reason>.*)"): _by(
        GUESSED["the request is refused"]
    ),
    # (What is not gRPC's own text is not written.)
    re.compile(r"Lost the RM \((?P<reason>UNAVAILABLE: .*)\);.*"): _by(
        GUESSED["the manager is unreachable"]
    ),
    re.compile(r"Lost the RM .*"): lambda _found: None,
    re.compile(r"Ending with exit code 0:.*"): lambda _found: None,
    re.compile(r"Ending with exit code \d+: ?(?P<reason>.*)"): _by(GUESSED["the proxy ends"]),
}
