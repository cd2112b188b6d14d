"""Why a proxy ended: from its exit report where it left one, else from its exit code."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

__all__ = ["read_exit_report", "reason_of"]

_REPORT_LIMIT = 64 << 10


def read_exit_report(path: Path) -> str:
    """Returns the report as JSON text; empty when there is none, or none that is an object."""
    try:
        with path.open("rb") as file:
            text = file.read(_REPORT_LIMIT).decode()
    except (OSError, UnicodeError):
        return ""
    return text if _parsed(text) else ""


def reason_of(code: int | None, report: str) -> str:
    """Returns in words why a proxy ended.

    Args:
      code: Its exit code, negative for a signal; None: it never ran.
      report: What `read_exit_report` returned.
    """
    said = _parsed(report).get("reason")
    if isinstance(said, str) and said:
        return said
    if code is None:
        return "it could not be started"
    if code < 0:
        return f"killed by {_signal_name(-code)}"
    return f"exit code {code}"


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
