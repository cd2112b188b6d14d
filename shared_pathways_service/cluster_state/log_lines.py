"""Parses lines of the servers' logs, of Google's images and of ours.

Lines of Google's images have the form that the public documentation of Pathways on Cloud shows and
that public tools search for. Ours have the same form, and some more. A line is glog's: ``I1208
20:10:04.992524  PID file:line] text``, after the time that Kubernetes adds on request.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

__all__ = ["LogEvent", "LogKind", "parse_line", "split_line"]


class LogKind(enum.StrEnum):
    """The kind of a line."""

    SERVING = "serving"
    """A server listens; `address`, except for Google's proxy."""
    SLICES_READY = "slices_ready"
    """Of the resource manager: `count` of `wanted` slices are ready."""
    TRANSPORT_READY = "transport_ready"
    """Of a worker: it can reach the other workers."""
    SIGNALING = "signaling"
    """Of the proxy: it requests slices from the resource manager at `address`."""
    QUEUED = "queued"
    """Of our proxy: it waits at position `count` of the queue; `reason`, `holders`."""
    PLACED = "placed"
    """Of the proxy: virtual slice `index` is placed; of ours also `slice_id`, `generation`."""
    UNPLACED = "unplaced"
    """Of the proxy: virtual slice `index` is no longer placed; of ours also `reason`."""
    ALL_PLACED = "all_placed"
    """Of our proxy: `count` of `wanted` slices are placed, which is enough to start."""
    PLACEMENT = "placement"
    """Of the proxy: information about placement, for people."""
    REFUSED = "refused"
    """Of the proxy: the request cannot be met (FAILED_PRECONDITION); `reason`."""
    MANAGER_LOST = "manager_lost"
    """Of our proxy: it cannot reach the resource manager; `reason`."""
    ENDING = "ending"
    """Of our proxy: it ends by itself with exit code `count`; `reason`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LogEvent:
    """A parsed line; fields that its kind does not have keep their defaults.

    Attributes:
      text: The message, without glog's prefix.
      index: The index of a virtual slice; None if the line names it, as in `slice_name`.
      slice_name: The name of the virtual slice in the line.
      slice_id: The physical slice.
    """

    kind: LogKind
    text: str
    address: str = ""
    count: int = 0
    wanted: int = 0
    index: int | None = None
    slice_name: str = ""
    slice_id: str = ""
    generation: int | None = None
    reason: str = ""
    holders: tuple[str, ...] = ()


_STAMP: Final = re.compile(r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S{0,16}) ")
_GLOG: Final = re.compile(
    r"[IWEF]\d{4} \d\d:\d\d:\d\d(\.\d{1,9})? {1,8}\d{1,10} [^\s\]]{1,200}:\d{1,6}\] ?"
)
#: Digits of an accepted number.
_N: Final = r"\d{1,9}"


def split_line(line: str) -> tuple[str, str]:
    """Splits a line into the time (RFC 3339) that Kubernetes adds, if it has one, and the rest."""
    found = _STAMP.match(line)
    return (found["stamp"], line[found.end() :]) if found else ("", line)


def parse_line(line: str) -> LogEvent | None:
    """Parses one line of a server's log.

    Lines may contain text of tenants, such as a holder's name. Forms with such text are matched
    first and from the line's start, so that the text cannot imitate another form. Returns None for
    an irrelevant line.
    """
    _, rest = split_line(line.rstrip("\r\n"))
    prefix = _GLOG.match(rest)
    text = (rest[prefix.end() :] if prefix else rest).strip()
    for form, make in _FORMS:
        if found := form(text):
            return make(text, found)
    return None


def _event(kind: LogKind) -> Callable[[str, re.Match[str]], LogEvent]:
    """Returns the function that makes an event of a kind from the named groups of a match."""

    def make(text: str, found: re.Match[str]) -> LogEvent:
        fields: dict[str, Any] = {
            name: int(value) if name in ("count", "wanted") else (value or "").strip()
            for name, value in found.groupdict().items()
        }
        return LogEvent(kind=kind, text=text, **fields)

    return make


def _queued(text: str, found: re.Match[str]) -> LogEvent:
    holders = found["holders"]
    return LogEvent(
        kind=LogKind.QUEUED,
        text=text,
        count=int(found["count"]),
        reason=found["reason"],
        holders=tuple(holders.split("; ")) if holders else (),
    )


def _transition(text: str, found: re.Match[str]) -> LogEvent:
    name, rest = found["slice"].rstrip(":,"), found["rest"]
    event = LogEvent(
        kind=LogKind.UNPLACED,
        text=text,
        slice_name=name,
        index=int(name) if re.fullmatch(_N, name) else None,
    )
    if found["new"].lower() != "placed":
        return dataclasses.replace(event, reason=rest.removeprefix(":").strip())
    detail = _PLACED_WHERE.search(rest)
    return dataclasses.replace(
        event,
        kind=LogKind.PLACED,
        slice_id=detail["id"] if detail else "",
        generation=int(detail["generation"]) if detail else None,
    )


_PLACED_WHERE: Final = re.compile(
    r"\(placement on (?P<id>\S+), generation (?P<generation>\d{1,18})\)"
)


def _start(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(pattern, re.ASCII).match


def _anywhere(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(pattern, re.IGNORECASE | re.ASCII).search


_CHANGE: Final = r"(unplaced|placed) ?-> ?(?P<new>unplaced|placed)\b"
_Form = tuple[Callable[[str], re.Match[str] | None], Callable[[str, re.Match[str]], LogEvent]]

#: Our forms first: they match whole lines, which may contain a tenant's text.
_FORMS: Final[Sequence[_Form]] = (
    (
        _start(
            rf"Waiting for placement at position (?P<count>{_N}): ?(?P<reason>.*?)"
            r"( \(held by (?P<holders>.*)\))?\Z"
        ),
        _queued,
    ),
    (
        _start(rf"All placements done: (?P<count>{_N}) of (?P<wanted>{_N}) slices placed"),
        _event(LogKind.ALL_PLACED),
    ),
    (_start(rf"Transition slice (?P<slice>{_N}) {_CHANGE}(?P<rest>.*)"), _transition),
    (_start(r"Lost the RM \((?P<reason>.*)\);"), _event(LogKind.MANAGER_LOST)),
    (
        _start(rf"Ending with exit code (?P<count>{_N}): ?(?P<reason>.*)"),
        _event(LogKind.ENDING),
    ),
    (
        _anywhere(
            r"\bPathways (Server|Proxy) serving on (?P<address>\S+)"
            r"|\bIFRT proxy server started with status OK\b"
        ),
        _event(LogKind.SERVING),
    ),
    (_anywhere(r"\bFAILED_PRECONDITION\b:?(?P<reason>.*)"), _event(LogKind.REFUSED)),
    (
        _anywhere(rf"(?P<count>{_N}) ?/ ?(?P<wanted>{_N}) Pathways Slices Now Ready"),
        _event(LogKind.SLICES_READY),
    ),
    (_anywhere(r"MegaScale transport init succeeded"), _event(LogKind.TRANSPORT_READY)),
    (_anywhere(rf"\bTransition slice (?P<slice>\S+).*?\b{_CHANGE}(?P<rest>.*)"), _transition),
    (_anywhere(r"Signaling to RM\b ?(?P<address>\S+)?"), _event(LogKind.SIGNALING)),
    (_anywhere(r"placement"), _event(LogKind.PLACEMENT)),
)
