"""Stands in for standard streams that were closed before this process started (`>&-`).

Otherwise the next file or socket gets the number of a closed stream: what a library writes to
standard error then goes into that socket, and a child whose streams are replaced loses it.
"""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["open_closed_streams", "reserve_descriptors"]

_NUMBERS: Final = (0, 1, 2)


def reserve_descriptors(*, inheritable: bool = False) -> None:
    """Opens the null device for each of the descriptors 0, 1 and 2 that is closed.

    Args:
      inheritable: Whether children find them open as well, instead of closed.
    """
    for number in _NUMBERS:
        try:
            os.fstat(number)
        except OSError:
            # (The lowest that is free: those below are open.)
            opened = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(opened, inheritable)


def open_closed_streams() -> None:
    """Replaces standard streams of this program that are closed by the null device.

    Its children find them open, too. Text that a stream cannot represent is escaped from now on.
    """
    reserve_descriptors(inheritable=True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # (Without a `with`: they stay open as long as the program runs.)
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115
            setattr(sys, name, stream)
    # A name or a line of a job's output must not end a command, e.g. where LANG is not UTF-8.
    if getattr(sys.stdout, "errors", None) == "strict" and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
