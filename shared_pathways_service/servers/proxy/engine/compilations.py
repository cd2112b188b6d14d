"""Compiles programs, one at a time and by turns of the sessions.

A program whose placements cannot compute yet holds up no other one: it is queued once they can.
While a program waits for a function of its client, which XLA calls at compile time, others are
compiled on threads of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent import futures

from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.execution.openings import Opening
from shared_pathways_service.servers.proxy.execution.settling import Countdown
from shared_pathways_service.servers.serving.last_requests_file import Place

__all__ = ["Compilations"]

#: The most programs that may wait for functions of their clients at a time.
_MOST_ASIDE = 16

#: Returns what a program's present placements wait for before they can compute.
Openings = Callable[[], Sequence[Opening]]


def _none() -> Sequence[Opening]:
    return ()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Compilation:
    session_id: int
    run: Callable[[], None]
    fail: Callable[[StatusError], None]
    openings: Openings


class Compilations:
    """The compilations of all sessions, one at a time: one of each session in turn."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        # Per session; the session that is served next comes first.
        self._waiting: dict[int, deque[_Compilation]] = {}
        # All that have not begun, with those whose placements cannot compute yet. A missing one has
        # begun, or its session was dropped.
        self._pending: set[_Compilation] = set()
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._others = futures.ThreadPoolExecutor(_MOST_ASIDE, thread_name_prefix="compile-aside")
        # Those of the compiling thread, unless it waits for a client.
        self._turn = threading.Lock()
        self._aside = 0
        # Created now: later the system may have no threads left, and `put` would fail with the
        # work.
        self._thread.submit(bool)

    def put(
        self,
        session_id: int,
        function: Callable[[], None],
        fail: Callable[[StatusError], None],
        openings: Openings = _none,
    ) -> None:
        """Has a function called on the compiling thread.

        Args:
          session_id: Its session.
          function: Compiles a program.
          fail: Called with the error that it raises.
          openings: Returns what is waited for before: again after that, as another placement may
            have come.
        """
        compilation = _Compilation(session_id, function, fail, openings)
        with self._lock:
            self._pending.add(compilation)
        self._put(compilation)

    def step_aside(self) -> None:
        """Lets others compile until `resume`; called by a compilation while it waits."""
        with self._lock:
            if self._aside >= _MOST_ASIDE:
                raise StatusError(
                    Code.RESOURCE_EXHAUSTED,
                    f"{_MOST_ASIDE} compilations wait for functions of their "
                    "clients, which is the limit",
                )
            self._aside += 1
            waiting = sum(map(len, self._waiting.values()))
        self._place.end()
        self._turn.release()
        self._run_aside(waiting)

    def resume(self, what: str) -> None:
        """Waits until nothing else is compiled; records what continues."""
        self._turn.acquire()
        with self._lock:
            self._aside -= 1
        self._place.begin(what)

    def drop(self, session_id: int) -> None:
        """Drops a session's waiting programs; XLA cannot stop a running compilation."""
        with self._lock:
            self._waiting.pop(session_id, None)
            self._pending = {one for one in self._pending if one.session_id != session_id}

    def close(self) -> None:
        """Ends the thread after the current compilation."""
        with self._lock:
            self._pending.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._others.shutdown(wait=False, cancel_futures=True)

    def _put(self, compilation: _Compilation) -> None:
        if self._waits(compilation):
            return
        with self._lock:
            if compilation not in self._pending:
                return  # its session has ended
            self._waiting.setdefault(compilation.session_id, deque()).append(compilation)
            aside = self._aside
        self._thread.submit(self._run_next)
        if aside:
            self._run_aside(1)

    def _waits(self, compilation: _Compilation) -> bool:
        """Returns whether its placements cannot compute yet; it is put once they can."""
        openings = [opening for opening in compilation.openings() if not opening.done]
        if not openings:
            return False
        one_settled = Countdown(len(openings), lambda: self._put(compilation))
        for opening in openings:
            if not opening.add_callback(one_settled):
                one_settled()
        return True

    def _run_aside(self, count: int) -> None:
        # The system may have no thread, or nothing more: then it waits for the existing one.
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                self._others.submit(self._run_next)

    def _run_next(self) -> None:
        # (If there is nothing: another thread has done it.)
        with self._turn:
            self._run_one()

    def _run_one(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # its session has ended
            session_id, queue = next(iter(self._waiting.items()))
            compilation = queue.popleft()
            # After all others.
            del self._waiting[session_id]
            if queue:
                self._waiting[session_id] = queue
        if self._waits(compilation):
            return
        with self._lock:
            if compilation not in self._pending:
                return  # its session has ended
            self._pending.remove(compilation)
        self._place.begin("a compilation")
        try:
            compilation.run()
        except BaseException as error:  # noqa: BLE001 - the client gets it, and the thread goes on
            compilation.fail(from_exception(error))
        finally:
            self._place.end()
