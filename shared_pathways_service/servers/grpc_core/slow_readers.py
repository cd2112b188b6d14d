"""Calls that are over, and whose clients have not read all messages yet."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from shared_pathways_service.runtime.glog import glog

__all__ = ["SlowReaders"]

#: Seconds between two checks.
_LOOK_S = 0.2


class _Call(Protocol):
    def give_up(self) -> None:
        """Ends the call for a client that does not read."""


class _EndedCall(NamedTuple):
    call: _Call
    events: Any
    since: float
    is_given_up: bool = False


class SlowReaders:
    """Waits for clients that read the end of a call slowly: limited in number and in time."""

    def __init__(
        self, is_drained: Callable[[Any, Any, float], bool], *, most: int, slow_reader_s: float
    ) -> None:
        self._is_drained = is_drained
        self._most = most
        self._slow_reader_s = slow_reader_s
        self._serves = True
        self._added: queue.SimpleQueue[_EndedCall | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="slow-readers", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def put(self, call: _Call, events: Any) -> None:
        """Adds an ended call, and the queue of its events; on any thread."""
        self._added.put(_EndedCall(call, events, time.monotonic()))

    def close(self, timeout_s: float) -> None:
        """Waits a limited time until none is left: the server has cancelled all."""
        self._serves = False
        self._added.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        slow: list[_EndedCall] = []
        while True:
            try:
                taken = self._added.get(timeout=_LOOK_S if slow else None)
                if taken is not None:
                    slow.append(taken)
                # All new ones, before the others are checked again: they may be many.
                while (taken := self._added.get_nowait()) is not None:
                    slow.append(taken)
            except queue.Empty:
                pass
            taken = None  # not referred to while waiting for the next one
            slow = [one for one in slow if not self._is_drained(one.call, one.events, 0.0)]
            if slow:
                slow = self._end_slowest(slow)
            elif not self._serves:
                return

    def _end_slowest(self, slow: list[_EndedCall]) -> list[_EndedCall]:
        """Ends calls that have waited too long, and the oldest beyond the limit."""
        oldest = time.monotonic() - self._slow_reader_s
        surplus = len(slow) - self._most
        remaining, count = [], 0
        for index, one in enumerate(slow):
            if not one.is_given_up and (one.since < oldest or index < surplus):
                one.call.give_up()
                remaining.append(one._replace(is_given_up=True))
                count += 1
            else:
                remaining.append(one)
        if count:
            glog(
                "W",
                f"{count} calls are ended: their clients did not read the end of them "
                f"in {self._slow_reader_s:g} s, or were more than {self._most} "
                "(a proxy's --slow_reader_s and --max_calls)",
            )
        return remaining
