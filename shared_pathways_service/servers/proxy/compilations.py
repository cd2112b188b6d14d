"""What is to be compiled: one thread, and sessions served in turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent import futures

from shared_pathways_service.servers.last_requests import Place
from shared_pathways_service.servers.proxy.status import StatusError, from_exception

__all__ = ["Compilations"]


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
        # Made now: later the system may have none left, and `put` fail after it has taken the work.
        self._thread.submit(bool)

    def put(
        self, session_id: int, function: Callable[[], None], fail: Callable[[StatusError], None]
    ) -> None:
        """Has `function` called on the thread that compiles; `fail` with whatever it raises."""
        with self._lock:
            self._waiting.setdefault(session_id, deque()).append((function, fail))
        self._thread.submit(self._run_next)

    def drop(self, session_id: int) -> None:
        """Forgets what a session waits for; what is compiled already goes on, as XLA has no end."""
        with self._lock:
            self._waiting.pop(session_id, None)

    def close(self) -> None:
        """Lets the thread end after what it compiles now."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run_next(self) -> None:
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
