"""Calls that are over, and whose clients have not taken all of them yet."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from shared_pathways_service.runtime.glog import glog

__all__ = ["LastWords"]

#: Seconds between two looks at them.
_LOOK_S = 0.2


class _Call(Protocol):
    def give_up(self) -> None:
        """Ends the call for a client that does not read."""


class _Slow(NamedTuple):
    call: _Call
    events: Any
    since: float
    broken_off: bool = False


class LastWords:
    """Waits for clients that take long to read the last of a call: some, and not for ever.

    Args:
      is_drained: Looks whether a call is over, given the time it may take, in seconds.
      most: Calls that may wait.
      slow_reader_s: Seconds that one may.
    """

    def __init__(
        self,
        is_drained: Callable[[Any, Any, float], bool],
        *,
        most: int,
        slow_reader_s: float,
    ) -> None:
        self._is_drained = is_drained
        self._most = most
        self._slow_reader_s = slow_reader_s
        self._serves = True
        self._came: queue.SimpleQueue[_Slow | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="last-words", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def put(self, call: _Call, events: Any) -> None:
        """Takes a call that was ended, and the queue of its events; on any thread."""
        self._came.put(_Slow(call, events, time.monotonic()))

    def close(self, timeout_s: float) -> None:
        """Waits, for so long at most, until none is left: the server has cancelled all."""
        self._serves = False
        self._came.put(None)
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        slow: list[_Slow] = []
        while True:
            try:
                taken = self._came.get(timeout=_LOOK_S if slow else None)
                if taken is not None:
                    slow.append(taken)
                # All that came, before the others are looked at again: they may be many.
                while (taken := self._came.get_nowait()) is not None:
                    slow.append(taken)
            except queue.Empty:
                pass
            taken = None  # not kept while the next one is waited for
            slow = [one for one in slow if not self._is_drained(one.call, one.events, 0.0)]
            if slow:
                slow = self._break_off(slow)
            elif not self._serves:
                return

    def _break_off(self, slow: list[_Slow]) -> list[_Slow]:
        """Breaks off what has waited for too long, and the oldest of what is too much.

        What is broken off is drained soon: its client is not waited for any more.
        """
        oldest = time.monotonic() - self._slow_reader_s
        surplus = len(slow) - self._most
        kept, count = [], 0
        for index, one in enumerate(slow):
            if not one.broken_off and (one.since < oldest or index < surplus):
                one.call.give_up()
                kept.append(one._replace(broken_off=True))
                count += 1
            else:
                kept.append(one)
        if count:
            glog(
                "W",
                f"{count} calls are broken off: their clients did not read the last of them "
                f"(--slow_reader_s={self._slow_reader_s:g}, --max_calls={self._most})",
            )
        return kept
