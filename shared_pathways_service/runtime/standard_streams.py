"""Stands in for standard streams that were closed before this process started (`>&-`).

Otherwise the next file or socket gets the number of a closed stream: what a library writes to
standard error then goes into that socket, and a child whose streams are replaced loses it.
"""

from __future__ import annotations

import codecs
import os
import sys
from typing import Final

__all__ = ["open_closed_streams", "reserve_descriptors"]

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def reserve_descriptors(*, inheritable: bool = False) -> None:
    """Opens the null device for each of the descriptors 0, 1 and 2 that is closed.

    Args:
      inheritable: Whether children find them open as well, instead of closed.
    """
    for number in range(len(_STREAMS)):
        try:
            os.fstat(number)
        except OSError:
            # The system gives out the lowest free number.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened == number:
                os.set_inheritable(opened, inheritable)
            else:
                # (Another thread has opened a file since, which has the number now.)
                os.close(opened)


def open_closed_streams() -> None:
    """Opens the null device in place of each standard stream of this program that is closed.

    Its children find them open, too. Text that standard output cannot represent is escaped from now
    on.
    """
    reserve_descriptors(inheritable=True)
    for number, (name, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            # (Without a `with`: it stays open as long as the program runs.)
            stream = open(  # noqa: SIM115
                number, mode, encoding="utf-8", errors="backslashreplace", closefd=False
            )
            setattr(sys, name, stream)
    # A name or a line of a job's output must not end a command, e.g. where LANG is not UTF-8.
    if _can_fail(sys.stdout) and hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def _can_fail(stream: object) -> bool:
    """Whether a stream refuses characters.

    With ``surrogateescape``, as in the locale C, UTF-8 can represent all text and any name of a
    file; ASCII can represent no more than with ``strict``.
    """
    errors = getattr(stream, "errors", None)
    if errors == "surrogateescape":
        return codecs.lookup(getattr(stream, "encoding", "utf-8")).name != "utf-8"
    return errors == "strict"
