"""Reports to the resource manager (RM) whether the tenant works, by looking now and then.

A look compares the existing counters, and the work under way, with the last look; so requests cost
nothing more. A thread runs only if the RM asks for activity.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from shared_pathways_service.protocol import resource_manager_pb2 as pb

if TYPE_CHECKING:
    from shared_pathways_service.servers.proxy.engine.engine import Engine
    from shared_pathways_service.servers.proxy.session.service import ProxyService
    from shared_pathways_service.servers.proxy.transport.transfers import Transfers

__all__ = ["PASSIVE", "Activity", "ActivityReporter"]

#: Requests that are not work: they ask for state, or drop objects, as JAX does at each garbage
#: collection.
PASSIVE = frozenset(
    {
        "check_future_request",
        "check_value_ready_request",
        "delete_array_request",
        "destruct_array_request",
        "get_default_device_assignment_request",
        "get_default_layout_request",
        "init_request",
        "is_array_deleted_request",
        "loaded_executable_cost_analysis_request",
        "loaded_executable_delete_request",
        "loaded_executable_destruct_request",
        "loaded_executable_human_readable_program_text_request",
        "loaded_executable_is_deleted_request",
        "loaded_executable_metadata_request",
    }
)

#: Seconds between two looks while the RM waits for work.
_HURRIED_INTERVAL_S = 0.25


class Activity:
    """Detects programs, compilations, transfers, and requests for these."""

    def __init__(
        self,
        engine: Engine,
        service: ProxyService,
        transfers: Transfers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._service = service
        self._transfers = transfers
        self._clock = clock
        self._done = 0
        self._count = 0
        self._looked_at = self._active_at = clock()

    def look(self) -> pb.TenantActivity:
        """Returns how many looks, with this one, saw work, and seconds since the last such."""
        now, before = self._clock(), self._looked_at
        done, self._looked_at = self._service.work_done(PASSIVE), now
        if done != self._done or self._is_under_way() or self._transfers.moved_since(before):
            self._done = done
            self._count += 1
            self._active_at = now
        return pb.TenantActivity(count=self._count, idle_s=now - self._active_at)

    def _is_under_way(self) -> bool:
        if any(epoch.operations for epoch in self._engine.slices.current()):
            return True
        return any(session.compiling for session in self._service.sessions)


class ActivityReporter:
    """Reports work to the RM, on a thread of its own that starts when the RM first asks."""

    def __init__(self, look: Callable[[], pb.TenantActivity]) -> None:
        self._look = look
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._send: Callable[[pb.TenantActivity], None] | None = None
        self._period_s = 0.0
        self._hurried = False
        self._is_asked = False
        self._reported_count = -1
        self._thread: threading.Thread | None = None

    def begin(self, period_s: float, send: Callable[[pb.TenantActivity], None]) -> None:
        """Reports at once, and from now on whenever a look, each `period_s` seconds, found work."""
        with self._lock:
            self._send, self._period_s = send, period_s
            self._is_asked = True
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="rm-activity", daemon=True)
                self._thread.start()
        self._wake.set()

    def end(self) -> None:
        """Stops reporting until `begin`."""
        with self._lock:
            self._send = None
            self._hurried = False

    def ask(self, *, hurried: bool) -> None:
        """Reports at once, with or without work; if `hurried`, then also new work without delay."""
        with self._lock:
            self._is_asked = True
            self._hurried = hurried
        self._wake.set()

    def calm(self) -> None:
        """Ends the effect of `hurried`."""
        with self._lock:
            self._hurried = False

    def close(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                period_s = self._period_s
                if self._hurried:
                    period_s = min(period_s, _HURRIED_INTERVAL_S)
                is_on = self._send is not None
            self._wake.wait(period_s if is_on else None)
            self._wake.clear()
            found = self._look()
            with self._lock:
                if self._closed:
                    return
                if self._send is not None and (
                    self._is_asked or found.count != self._reported_count
                ):
                    self._is_asked = False
                    self._reported_count = found.count
                    self._send(found)
