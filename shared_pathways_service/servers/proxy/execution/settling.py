"""Calls the callbacks of settled operations in turn, not nested."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from shared_pathways_service.runtime.glog import glog

__all__ = ["call_in_turn"]


class _Due(threading.local):
    """The callbacks that this thread still has to call; None: it calls none now.

    An operation that settles may settle the next, and so on: a long chain must not become a deep
    stack.
    """

    callbacks: deque[Callable[[], None]] | None = None


_due = _Due()


def call_in_turn(callbacks: Iterable[Callable[[], None]]) -> None:
    """Calls an operation's callbacks: now, or after those that this thread calls already."""
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
