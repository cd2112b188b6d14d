"""Limits the requests of calls without a token, so that strangers cannot delay others.

A call with one request has its thread before the request has arrived, as gRPC reports a message
only when it is complete. A stranger who opens such calls and sends nothing, or a long message
slowly, would take all threads. So only a few requests may be late at a time: one more ends the
oldest.

The tenant's own clients use the same methods, and nothing in the protocol distinguishes them (on a
Unix socket every peer has the same name). But the number of their open calls is known: one for each
host buffer of a session. So many more may be late, as all are on a machine without enough processor
time.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from shared_pathways_service.runtime.glog import glog

__all__ = ["Awaited", "LateRequests"]

#: Seconds of a round; a request is late if it was awaited for a whole one. Usually it arrives with
#: its call.
_ROUND_S = 0.02
#: Late requests at a time in addition to those of sessions. Each may hold a message of the longest
#: kind.
_MOST_LATE = 8
#: Threads of a pool for each one that no late request holds longer than its time while calls wait.
_THREADS_PER_RESERVED = 16


class LateRequests:
    """Watches requests that are awaited on the threads of one pool. Thread-safe.

    Time is counted in rounds of the watching thread: without processor time for this process no
    request becomes late.

    Args:
      timeout_s: The seconds for a request to arrive, if few others are late.
      expected: Returns how many requests the tenant's own sessions may have open. So many of the
        late ones are spared, the newest first. While calls wait, fewer are spared than the pool has
        threads; while calls wait and no request arrives, none is.
      waiting: Returns how many calls wait for a thread of the pool.
      threads: The number of threads in the pool.
      most: Late ones at a time, in addition to the expected ones.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        expected: Callable[[], int] = lambda: 0,
        waiting: Callable[[], int] = lambda: 0,
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
        # Rounds since a request last arrived (or none was awaited).
        self._rounds_stuck = 0
        self._last_fault = ""
        self._news = threading.Event()
        self._closed = False
        self._sleeps = False
        self._thread = threading.Thread(target=self._run, name="late-requests", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def awaited(self, give_up: Callable[[str], object]) -> Iterator[Awaited]:
        """Registers an awaited request; set `has_arrived` of the result when it has arrived.

        `give_up` ends the wait, on another thread, with the reason; it is called at most once.
        """
        awaited = Awaited(give_up)
        self._awaited[awaited] = None
        if self._sleeps:
            self._news.set()
        try:
            yield awaited
        finally:
            del self._awaited[awaited]
            # (Not if the client has ended the call before.)
            if awaited.has_arrived and not awaited.given_up:
                self._rounds_stuck = 0

    def close(self) -> None:
        """Gives up no more requests."""
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
                # Requests that arrive within this time are not checked.
                time.sleep(_ROUND_S)
                self._look_safely()

    def _look_safely(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 - the next round may succeed
            fault = f"{type(error).__name__}: {error}"
            # A lasting fault would fill the log.
            if fault != self._last_fault:
                glog("E", f"cannot check for late requests: {fault}")
            self._last_fault = fault

    def _look(self) -> None:
        late: list[Awaited] = []
        self._rounds_stuck += 1
        for one in list(self._awaited):
            if one.rounds and not one.given_up:
                late.append(one)
            one.rounds += 1
        if len(late) > self._most or (late and late[0].rounds > self._patience):
            self._choose(late)

    def _choose(self, late: Sequence[Awaited]) -> None:
        """Gives up those that are too many, or take too long, the oldest first."""
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
                self._give_up(one, f"{allowed} newer ones have not arrived either")
            elif index < spared_from and one.rounds > self._patience:
                self._give_up(one, f"it took more than {self._timeout_s:g} s")

    def _give_up(self, one: Awaited, reason: str) -> None:
        one.given_up = True
        try:
            one.give_up(
                f"the call's request did not arrive in time: {reason} (--request_timeout_s)"
            )
        except Exception as error:  # noqa: BLE001 - the others are looked after all the same
            glog("E", f"a call cannot be ended: {type(error).__name__}: {error}")


class Awaited:
    """A request that is awaited."""

    def __init__(self, give_up: Callable[[str], object]) -> None:
        self.has_arrived = False
        self.give_up = give_up
        # The rounds whose end it has seen.
        self.rounds = 0
        self.given_up = False
