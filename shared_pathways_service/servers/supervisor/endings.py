"""Explains why a proxy ended, from its exit report or its exit code."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from shared_pathways_service.events import rfc3339
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.state_file import write_private
from shared_pathways_service.runtime.last_requests import Unfinished, explained

__all__ = ["explain_crash", "read_exit_report", "reason_of"]

_REPORT_LIMIT = 64 << 10
#: Lines of the log in the report of a crash.
_LINES_KEPT = 200


def read_exit_report(path: Path) -> str:
    """Returns the report as JSON text; empty if there is none, or it is not an object."""
    try:
        with path.open("rb") as file:
            text = file.read(_REPORT_LIMIT).decode()
    except (OSError, UnicodeError):
        return ""
    return text if _parsed(text) else ""


def reason_of(code: int | None, report: str) -> str:
    """Returns in words why a proxy ended; a negative code is a signal, with None it never ran."""
    said = _parsed(report).get("reason")
    if isinstance(said, str) and said:
        return said
    if code is None:
        return "it could not be started"
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    return f"exit code {code}"


def explain_crash(reason: str, unfinished: Unfinished, log: Path) -> str:
    """Writes a report of a crash beside the proxy's log, unless the proxy was not used.

    Returns:
      The reason; with running operations, last requests, and the path of a report if there is one.
    """
    if not unfinished.requests:
        return reason
    explanation = explained(reason, unfinished)
    path = log.with_suffix(".crash.json")
    report = {
        "reason": reason,
        "time": rfc3339(time.time()),
        "running": list(unfinished.running),
        "last_requests": list(unfinished.requests),
        "log_tail": tail_of(log, _LINES_KEPT),
    }
    try:
        write_private(path, json.dumps(report, indent=2).encode() + b"\n")
    except OSError:
        # A full disk must not hide the rest.
        return explanation
    return f"{explanation}; report: {path}"


def _parsed(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
