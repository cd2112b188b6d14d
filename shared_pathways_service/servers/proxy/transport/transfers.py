"""Threads for uploads and downloads; ends stalled transfers that delay others.

JAX's client has thousands of uploads under way if a step has many arguments, and takes the refusal
of one for the end of its session: so those beyond the threads wait. A client that stops in its
transfers, or does not read, would delay all others for ever. A client that is alone delays only
itself: on a slow link its transfers may take their time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.serving.call_threads import CallThreads

__all__ = ["Transfers"]

T = TypeVar("T")
#: The number of checks in the time after which a transfer counts as stalled.
_LOOKS = 4


class Transfers:
    """The transfers of all sessions under way, each with a thread.

    Args:
      count: The most at a time.
      timeout: The time after which a stalled one is ended, if others wait. It is counted in checks
        of a thread, so time in which this process does not run does not count.
      is_shared: Whether there is more than one session.
    """

    def __init__(
        self, count: int, timeout: Timeout, *, is_shared: Callable[[], bool] = lambda: True
    ) -> None:
        self.pool = CallThreads(count, "transfer")
        self._timeout = timeout
        self._is_shared = is_shared
        self._under_way: dict[_Transfer, None] = {}
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._end_stalled, name="transfers", daemon=True)
        self._watch.start()

    @contextlib.contextmanager
    def begin(self, cancel: Callable[[], object]) -> Iterator[_Transfer]:
        """Counts a transfer as under way; `cancel`, called at most once, ends it."""
        transfer = _Transfer(cancel)
        self._under_way[transfer] = None
        try:
            yield transfer
        finally:
            del self._under_way[transfer]

    def moved_since(self, when: float) -> bool:
        """Whether a running one has moved since a time of the monotonic clock."""
        return any(transfer.moved_at >= when for transfer in list(self._under_way))

    def close(self) -> None:
        """Ends the watch; transfers end with their calls."""
        self._closed.set()
        self._watch.join()
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _end_stalled(self) -> None:
        while not self._closed.wait(self._timeout.s / _LOOKS):
            # (One that was cancelled may take a while to end.)
            stalled = [t for t in list(self._under_way) if t.is_still() and not t.ended]
            if not self.pool.waiting or not self._is_shared():
                continue
            if stalled:
                glog(
                    "W",
                    f"{len(stalled)} transfers have not moved for {self._timeout.s:g} s and delay "
                    "others: ending them",
                )
            for transfer in stalled:
                transfer.end()


class _Transfer:
    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        self.ended = False
        self.moved_at = time.monotonic()
        self._seen_at = 0.0
        self._still_looks = 0

    def is_still(self) -> bool:
        """Checks it; returns whether it has stalled for the number of checks in the patience."""
        self._still_looks = self._still_looks + 1 if self._seen_at == self.moved_at else 0
        self._seen_at = self.moved_at
        return self._still_looks >= _LOOKS

    def end(self) -> None:
        self.ended = True
        self._cancel()

    def watched(self, messages: Iterable[T]) -> Iterator[T]:
        """Passes messages on, and records each."""
        for message in messages:
            self.moved_at = time.monotonic()
            yield message
