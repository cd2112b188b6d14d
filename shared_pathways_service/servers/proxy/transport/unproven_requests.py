"""The requests of calls that show no token: strangers' may not hold up others, nor much memory.

A call of one request has its thread before its request has come, as gRPC says of a message only
that it is there. A stranger who opens such calls and sends nothing, or a long message slowly, would
have all threads. So only a few requests may be late at a time: one more ends the oldest.

The tenant's own clients use the same methods, and nothing on the wire tells them apart (on a Unix
socket every peer has the same name). But how many of these calls they may have open is known: one
for each host buffer that a session holds. So many more may be late, as on a machine that is short
of processor time all of them are.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from shared_pathways_service.runtime.glog import glog

__all__ = ["Awaited", "LateRequests"]

#: Seconds of a round; a request is late that was awaited for all of one. Mostly it comes together
#: with its call.
_ROUND_S = 0.02
#: Late ones at a time beside those that sessions may have. Each may hold a message of the longest
#: kind.
_MOST_LATE = 8
#: Threads of a pool for each one that no late request holds for longer than its time while calls
#: wait.
_THREADS_PER_RESERVED = 16


def _nobody() -> int:
    return 0


class LateRequests:
    """Looks after requests that are awaited on the threads of one pool. Thread-safe.

    Time is counted in rounds of the thread that looks: where this process gets no processor time,
    no request becomes late.

    Args:
      timeout_s: Seconds that a request may take where few others are late.
      expected: Returns how many requests the tenant's own sessions may have open. So many of the
        late ones are spared, the last that came. While calls wait, fewer are spared than the pool
        has threads; while calls wait and no request comes, none is.
      waiting: Returns how many calls wait for a thread of the pool.
      threads: Of the pool.
      most: Late ones at a time beside those that are expected.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        expected: Callable[[], int] = _nobody,
        waiting: Callable[[], int] = _nobody,
        threads: int = 1 << 16,
        most: int = _MOST_LATE,
    ) -> None:
        self._timeout_s = timeout_s
        self._patience = max(1, math.ceil(timeout_s / _ROUND_S))
        self._expected = expected
        self._waiting = waiting
        self._most_spared = threads - math.ceil(threads / _THREADS_PER_RESERVED)
        self._most = most
        self._awaited: dict[Awaited, None] = {}
        # Rounds since a request last came (or none was awaited).
        self._rounds_stuck = 0
        self._last_fault = ""
        self._news = threading.Event()
        self._closed = False
        self._sleeps = False
        self._thread = threading.Thread(target=self._run, name="late-requests", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def awaited(self, give_up: Callable[[str], object]) -> Iterator[Awaited]:
        """Counts a request as awaited; set `has_come` of the result when it has come.

        Args:
          give_up: Ends the wait, on another thread, with the reason; called once at most.
        """
        awaited = Awaited(give_up)
        self._awaited[awaited] = None
        if self._sleeps:
            self._news.set()
        try:
            yield awaited
        finally:
            del self._awaited[awaited]
            # (Not where the client has ended the call before.)
            if awaited.has_come and not awaited.told:
                self._rounds_stuck = 0

    def close(self) -> None:
        """Gives nothing up any more."""
        self._closed = True
        self._news.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            self._sleeps = True
            if not self._awaited:
                self._rounds_stuck = 0
                self._news.wait()
            self._sleeps = False
            self._news.clear()
            if not self._closed:
                # Whatever comes within this is not looked at.
                time.sleep(_ROUND_S)
                self._look_safely()

    def _look_safely(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the next round may succeed
            fault = f"{type(error).__name__}: {error}"
            # A fault that stays would fill the log.
            if fault != self._last_fault:
                glog("E", f"late requests cannot be looked after: {fault}")
            self._last_fault = fault

    def _look(self) -> None:
        late: list[Awaited] = []
        self._rounds_stuck += 1
        for one in list(self._awaited):
            if one.rounds and not one.told:
                late.append(one)
            one.rounds += 1
        if len(late) > self._most or (late and late[0].rounds > self._patience):
            self._choose(late)

    def _choose(self, late: Sequence[Awaited]) -> None:
        """Gives up those that are too many, or take too long, in the order in which they came."""
        expected = self._expected()
        surplus = len(late) - self._most - expected
        spared = expected
        if self._waiting() > 0:
            is_stuck = self._rounds_stuck > self._patience
            spared = 0 if is_stuck else min(expected, self._most_spared)
        spared_from = len(late) - spared
        for index, one in enumerate(late):
            if index < surplus:
                allowed = self._most + expected
                self._give_up(one, f"{allowed} later ones have not come whole either")
            elif index < spared_from and one.rounds > self._patience:
                self._give_up(one, f"it took more than {self._timeout_s:g} s")

    def _give_up(self, one: Awaited, reason: str) -> None:
        one.told = True
        try:
            one.give_up(f"the call's request is awaited no longer: {reason} (--request_timeout_s)")
        except Exception as error:  # noqa: BLE001 - the others are looked after all the same
            glog("E", f"a call cannot be ended: {type(error).__name__}: {error}")


class Awaited:
    """A request that is awaited.

    Attributes:
      has_come: Whether it has come.
    """

    def __init__(self, give_up: Callable[[str], object]) -> None:
        self.has_come = False
        self.give_up = give_up
        # Rounds whose end it has seen.
        self.rounds = 0
        self.told = False
