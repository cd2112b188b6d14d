"""The log of a server: lines on standard error in the form of glog, as the images write them."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from pathlib import Path
from typing import Literal

__all__ = ["Severity", "glog", "send_logging_to_glog"]

Severity = Literal["I", "W", "E", "F"]


def glog(severity: Severity, message: str) -> None:
    """Writes one line to standard error in the form of glog, as the real images do.

    Args:
      severity: I, W, E or F, as in glog; F does not end the process.
      message: One line; a newline in it is written as two characters, so that no tenant's text
        can forge a line.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the caller's place is part of the form
    _write_line(severity, time.time(), frame.f_code.co_filename, frame.f_lineno, message)


def send_logging_to_glog(level: int = logging.INFO) -> None:
    """Lets the records of `logging` (of libraries, that is) appear in the same form."""
    root = logging.getLogger()
    root.handlers[:] = [_GlogHandler()]
    root.setLevel(level)


class _GlogHandler(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        severity: Severity = "I"
        if record.levelno >= logging.WARNING:
            severity = "E" if record.levelno >= logging.ERROR else "W"
        text = self.format(record)
        _write_line(severity, record.created, record.filename, record.lineno, text)


def _write_line(severity: Severity, at: float, file: str, line: int, message: str) -> None:
    moment = time.strftime("%m%d %H:%M:%S", time.localtime(at))
    micros = int(at % 1 * 1_000_000)
    text = message.replace("\n", "\\n")
    where = f"{Path(file).name}:{line}"
    line_text = f"{severity}{moment}.{micros:06d} {os.getpid():>7} {where}] {text}\n"
    # A name of a file may have bytes that are no text.
    data = line_text.encode(errors="backslashreplace")
    # Past Python's buffers, so that lines of several threads never mix. A log that nobody reads
    # any more is no reason to end.
    with contextlib.suppress(OSError):
        os.write(2, data)
