"""The requests of calls that show no token: they may not hold up others, nor much memory.

A call of one request has its thread before its request has come, as gRPC says of a message only
that it is there. Whoever opens such calls and sends nothing, or a long message slowly, would have
all threads. So only a few may be late at a time: the oldest goes for one more.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from shared_pathways_service.servers.glog import glog

__all__ = ["LateRequests"]

#: Seconds after which a request is late: mostly it comes together with its call.
_LATE_S = 0.02
#: Late ones at a time. Each may hold a message of the longest kind.
_MOST_LATE = 8


class LateRequests:
    """Looks after requests that are awaited. Thread-safe.

    Args:
      timeout_s: Seconds that a request may take where no other is late.
      most: Late ones at a time.
    """

    def __init__(self, timeout_s: float, most: int = _MOST_LATE) -> None:
        self._timeout_s = timeout_s
        self._most = most
        self._awaited: dict[_Awaited, None] = {}
        self._news = threading.Event()
        self._closed = False
        self._sleeps = False
        self._thread = threading.Thread(target=self._run, name="late-requests", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def awaited(self, give_up: Callable[[str], object]) -> Iterator[None]:
        """Counts a request as awaited.

        Args:
          give_up: Ends the wait, on another thread, with the reason; called once at most.
        """
        awaited = _Awaited(give_up)
        self._awaited[awaited] = None
        if self._sleeps:
            self._news.set()
        try:
            yield
        finally:
            del self._awaited[awaited]

    def close(self) -> None:
        """Gives nothing up any more."""
        self._closed = True
        self._news.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._sleeps = True
            if not self._awaited:
                self._news.wait()
            self._sleeps = False
            self._news.clear()
            if not self._closed:
                # Whatever comes within this is not looked at.
                time.sleep(_LATE_S)
                self._look()

    def _look(self) -> None:
        now = time.monotonic()
        late = [one for one in list(self._awaited) if one.since < now - _LATE_S and not one.told]
        # (In the order in which they came.)
        surplus = len(late) - self._most
        for index, one in enumerate(late):
            if index < surplus:
                self._give_up(one, f"{self._most} later ones have not come whole either")
            elif one.since < now - self._timeout_s:
                self._give_up(one, f"it took more than {self._timeout_s:g} s")

    def _give_up(self, one: _Awaited, reason: str) -> None:
        one.told = True
        try:
            one.give_up(f"the call's request is awaited no longer: {reason} (--request_timeout_s)")
        except Exception as error:  # noqa: BLE001 - the others are looked after all the same
            glog("E", f"a call cannot be ended: {type(error).__name__}: {error}")


class _Awaited:
    def __init__(self, give_up: Callable[[str], object]) -> None:
        self.give_up = give_up
        self.since = time.monotonic()
        self.told = False
