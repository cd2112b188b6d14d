"""Reads the times in objects of Kubernetes."""

from __future__ import annotations

import datetime

__all__ = ["seconds_of"]


def seconds_of(stamp: object) -> float | None:
    """Returns the seconds since 1970 of an RFC 3339 time; None: it is none."""
    try:
        return datetime.datetime.fromisoformat(str(stamp)).timestamp()
    except ValueError:
        return None
