"""Writes a server's log to standard error, in the form of glog (like Google's images) or as JSON.

The JSON form has one object per line, with names that log collectors know: ``severity``, ``time``,
``message``, and the source location.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from shared_pathways_service.events import rfc3339

__all__ = [
    "Severity",
    "glog",
    "is_json",
    "json_line",
    "read_log_format",
    "send_logging_to_glog",
    "severity_of",
    "write_text",
]

Severity = Literal["I", "W", "E", "F"]

_GLOG, _JSON = "glog", "json"
_SEVERITIES: Mapping[Severity, str] = {
    "I": "INFO",
    "W": "WARNING",
    "E": "ERROR",
    "F": "CRITICAL",
}


class _Form:
    """The form of this process's log."""

    name = _GLOG


def read_log_format(text: str) -> str:
    """Parses the flag ``--log_format``; ``text``, the setting's word, means glog."""
    found = {_GLOG: _GLOG, "text": _GLOG, _JSON: _JSON}.get(text)
    if found is None:
        raise ValueError(f"{_GLOG} or {_JSON}")
    return found


def glog(severity: Severity, message: str) -> None:
    """Writes one line to standard error in the form of glog, like Google's images.

    Args:
      severity: I, W, E or F, as in glog; F does not end the process.
      message: One line; a newline is written as two characters, so that text of tenants cannot
        forge a line.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the caller's place is part of the form
    _write_line(severity, time.time(), frame.f_code.co_filename, frame.f_lineno, message)


def send_logging_to_glog(level: int = logging.INFO, *, log_format: str = _GLOG) -> None:
    """Formats the records of `logging` (from libraries), and all further lines, in this form."""
    _Form.name = log_format
    root = logging.getLogger()
    root.handlers[:] = [_GlogHandler()]
    root.setLevel(level)


class _GlogHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        _write_line(severity_of(record), record.created, record.filename, record.lineno, text)


def severity_of(record: logging.LogRecord) -> Severity:
    """Returns the severity in glog's form."""
    if record.levelno >= logging.WARNING:
        return "E" if record.levelno >= logging.ERROR else "W"
    return "I"


def _write_line(severity: Severity, at: float, file: str, line: int, message: str) -> None:
    form = json_line if is_json() else _glog_line
    write_text(form(severity, at, f"{_name(file)}:{line}", message))


def is_json() -> bool:
    """Whether this process's log has one object per line."""
    return _Form.name == _JSON


def write_text(lines: str) -> None:
    """Writes whole lines, each with its newline, to standard error."""
    # A file's name may contain bytes that are not text.
    data = lines.encode(errors="backslashreplace")
    # Without Python's buffers, so that lines of several threads do not mix. A closed log must not
    # end the server.
    with contextlib.suppress(OSError):
        os.write(2, data)


@functools.cache
def _name(file: str) -> str:
    """Returns a file's name without its directory; few files write logs."""
    return Path(file).name


def json_line(severity: Severity, at: float, where: str, message: str) -> str:
    """Returns a line of a log as JSON, with its newline; `where` is a source file and line."""
    record = {
        "severity": _SEVERITIES[severity],
        "time": rfc3339(at),
        "pid": os.getpid(),
        "where": where,
        "message": message,
    }
    return f"{json.dumps(record, ensure_ascii=False)}\n"


def _glog_line(severity: Severity, at: float, where: str, message: str) -> str:
    moment = time.strftime("%m%d %H:%M:%S", time.localtime(at))
    micros = int(at % 1 * 1_000_000)
    text = message.replace("\n", "\\n")
    return f"{severity}{moment}.{micros:06d} {os.getpid():>7} {where}] {text}\n"
