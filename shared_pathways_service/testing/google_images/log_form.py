"""Translates log lines of this project's servers into the images' format."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from shared_pathways_service.cluster_state.log_lines import LogEvent, LogKind, parse_line

__all__ = ["googles_form"]

_GLOG: Final = re.compile(
    r"(?P<head>(?P<severity>[IWEF])\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+) (?P<source>[^\s\]]+)\] "
)
#: The public source positions of the images' lines ("Troubleshoot Pathways on cloud").
_PROXY: Final = "proxy_server.cc:125"
_SERVER: Final = "server_lib.cc:1473"
_ALLOCATOR: Final = "multi_job_allocator.cc:1063"
#: For lines whose text alone is public.
_SOMEWHERE: Final = "pathways.cc:1"
_OUR_PROXY: Final = "Pathways Proxy"
_MEGASCALE: Final = "MegaScale transport init"


def googles_form(line: str) -> str | None:
    """Returns a line of a server's log in the image's format; None: the image has no such line.

    Lines that are not in glog's format, such as a crash's stack, are unchanged. Warnings and errors
    keep their text, which is for people.
    """
    prefix = _GLOG.match(line)
    if prefix is None:
        return line
    text = line[prefix.end() :]
    event = parse_line(text)
    if event is not None:
        form = _FORMS.get(event.kind)
        written = form(event) if form else None
        return f"{prefix['head']} {written}" if written else None
    if prefix["severity"] == "I" and not text.startswith(_MEGASCALE):
        return None
    return f"{prefix['head']} {_SOMEWHERE}] {text}"


def _serving(event: LogEvent) -> str:
    if _OUR_PROXY in event.text:
        return f"{_PROXY}] IFRT proxy server started with status OK"
    return f"{_SERVER}] Pathways Server serving on [::]:{event.address.rpartition(':')[2]}"


def _as_it_is(event: LogEvent) -> str:
    return f"{_SOMEWHERE}] {event.text}"


def _not_connected(event: LogEvent) -> str | None:
    is_grpcs = event.reason.startswith("UNAVAILABLE: ")
    return f"{_SOMEWHERE}] {event.reason}" if is_grpcs else None


def _ending(event: LogEvent) -> str | None:
    return f"{_SOMEWHERE}] {event.reason}" if event.count else None


#: The text after the header, by kind; the images do not log other kinds.
_FORMS: Final[Mapping[LogKind, Callable[[LogEvent], str | None]]] = {
    LogKind.SERVING: _serving,
    LogKind.SLICES_READY: lambda event: (
        f"{_ALLOCATOR}] *** {event.count}/{event.wanted} Pathways Slices Now Ready ***"
    ),
    LogKind.TRANSPORT_READY: _as_it_is,
    LogKind.SIGNALING: _as_it_is,
    LogKind.REFUSED: _as_it_is,
    LogKind.MANAGER_LOST: _not_connected,
    LogKind.ENDING: _ending,
    LogKind.QUEUED: lambda _: f"{_SOMEWHERE}] Waiting for placement",
    LogKind.PLACED: lambda event: (
        f"{_SOMEWHERE}] Transition slice {event.index} unplaced -> placed"
    ),
    LogKind.UNPLACED: lambda event: (
        f"{_SOMEWHERE}] Transition slice {event.index} placed -> unplaced"
    ),
}
