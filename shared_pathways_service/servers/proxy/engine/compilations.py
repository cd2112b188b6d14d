"""What is to be compiled: one program at a time, and sessions served in turn.

While a program waits for a function of its client, which XLA calls as it compiles it, others are
compiled on threads of their own.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures

from shared_pathways_service.servers.proxy.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.serving.last_requests_file import Place

__all__ = ["Compilations"]

#: Programs that may wait for functions of their clients at a time.
_MOST_ASIDE = 16


class Compilations:
    """Compilations of all sessions, one at a time: of each session one, then of the next.

    Args:
      place: Takes note of what runs, should the process not outlive it.
    """

    def __init__(self, place: Place) -> None:
        self._place = place
        self._lock = threading.Lock()
        # By session, the one that is served next first.
        self._waiting: dict[int, deque[_Compilation]] = {}
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="compile")
        self._others = futures.ThreadPoolExecutor(_MOST_ASIDE, thread_name_prefix="compile-aside")
        # Of the thread that compiles, unless it waits for a client.
        self._turn = threading.Lock()
        self._aside = 0
        # Made now: later the system may have none left, and `put` fail after it has taken the work.
        self._thread.submit(bool)

    def put(
        self, session_id: int, function: Callable[[], None], fail: Callable[[StatusError], None]
    ) -> None:
        """Has `function` called on the thread that compiles; `fail` with whatever it raises."""
        with self._lock:
            self._waiting.setdefault(session_id, deque()).append((function, fail))
            aside = self._aside
        self._thread.submit(self._run_next)
        if aside:
            self._run_aside(1)

    def step_aside(self) -> None:
        """Has others compiled until `resume`; called by what is compiled, while it waits.

        Raises:
          StatusError: RESOURCE_EXHAUSTED: too many wait.
        """
        with self._lock:
            if self._aside >= _MOST_ASIDE:
                raise StatusError(
                    Code.RESOURCE_EXHAUSTED,
                    f"{_MOST_ASIDE} programs that are compiled wait for functions of their "
                    "clients; that is the limit",
                )
            self._aside += 1
            waiting = sum(map(len, self._waiting.values()))
        self._place.end()
        self._turn.release()
        self._run_aside(waiting)

    def resume(self, what: str) -> None:
        """Waits until nothing else is compiled; takes note of what goes on."""
        self._turn.acquire()
        with self._lock:
            self._aside -= 1
        self._place.begin(what)

    def drop(self, session_id: int) -> None:
        """Forgets what a session waits for; what is compiled already goes on, as XLA has no end."""
        with self._lock:
            self._waiting.pop(session_id, None)

    def close(self) -> None:
        """Lets the thread end after what it compiles now."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._others.shutdown(wait=False, cancel_futures=True)

    def _run_aside(self, count: int) -> None:
        # No thread, or no more of anything: then it waits for the one that there is.
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                self._others.submit(self._run_next)

    def _run_next(self) -> None:
        # (Whoever calls, and finds nothing: another thread has done it.)
        with self._turn:
            self._run_one()

    def _run_one(self) -> None:
        with self._lock:
            if not self._waiting:
                return  # its session has ended
            session_id, queue = next(iter(self._waiting.items()))
            function, fail = queue.popleft()
            # Behind all others.
            del self._waiting[session_id]
            if queue:
                self._waiting[session_id] = queue
        self._place.begin("a compilation")
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - the client is told, and the thread goes on
            fail(from_exception(error))
        finally:
            self._place.end()


_Compilation = tuple[Callable[[], None], Callable[[StatusError], None]]
