"""Calls what waits for operations that settle: in turn, not nested."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from shared_pathways_service.runtime.glog import glog

__all__ = ["call_in_turn"]


class _Due(threading.local):
    """What this thread has still to call, because operations have settled; None: it calls nothing.

    One that settles may settle the next, and that one the next again: a chain of any length must
    not be a stack of that depth.
    """

    callbacks: deque[Callable[[], None]] | None = None


_due = _Due()


def call_in_turn(callbacks: Iterable[Callable[[], None]]) -> None:
    """Calls what waited for an operation: now, or once what this thread is calling is through."""
    due = _due.callbacks
    if due is not None:
        due.extend(callbacks)
        return
    due = _due.callbacks = deque(callbacks)
    try:
        while due:
            try:
                due.popleft()()
            except Exception as error:  # noqa: BLE001 - the others wait for theirs
                glog("E", f"a callback failed: {type(error).__name__}: {error}")
    finally:
        _due.callbacks = None
