"""Reads a service continuously for all open pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady, SharedPathwaysError
from shared_pathways_service.events import rfc3339
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.service_occupancy import (
    detailed_occupancy_of,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.web.connection_details import ConnectionService
from shared_pathways_service.web.page_state import State, empty_state, state_of, unreachable
from shared_pathways_service.web.start_plans import plans_of

__all__ = ["ReadableService", "ServiceFeed"]

#: Seconds between two readings of a service of Google's: each lists objects of the cluster.
_SLOW_INTERVAL_S = 5.0


class ReadableService(ConnectionService, Protocol):
    """What the pages need of a `ServiceReader`."""

    def manager(self) -> AbstractAsyncContextManager[Manager]:
        """Connects to the resource manager for the length of the block."""

    def status(self) -> dict[str, Any]:
        """Returns the output of ``sps status --json``."""


class ServiceFeed:
    """Reads a service while pages are open: once per interval, for however many pages.

    A service that goes away is read again until it is back.

    Attributes:
      reader: The service.
      state: Its last known state.

    Args:
      reader: The service.
      home: Its home, for the pages.
      interval_s: Seconds between two readings, and before the next attempt after a failure.
    """

    def __init__(self, reader: ReadableService, home: str, *, interval_s: float = 1.0) -> None:
        self.reader = reader
        self._home = home
        self._interval_s = interval_s
        self._state = empty_state()
        self._changed = asyncio.Condition()
        self._pages = 0
        self._watched = asyncio.Event()
        #: Whether the service answered, or failed to, since pages are open.
        self._was_read = asyncio.Event()
        self._manager: Manager | None = None
        self._last_answer = time.time()
        self._closed = False

    @property
    def state(self) -> State:
        """The last known state."""
        return self._state

    async def manager(self) -> Manager:
        """Returns the connected resource manager; waits for it if a page has only just been opened.

        Raises:
          ServiceNotReady: It does not answer, or is one of Google's, which keep no history.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._was_read.wait(), timeouts.PAGE_ANSWER.s)
        if self._manager is None:
            about = self._state["service"].get("service", {})
            reason = about.get("error") or "it has not answered yet, or keeps no history"
            raise ServiceNotReady(
                f"the resource manager cannot be asked: {reason}", hint=about.get("hint") or ""
            )
        return self._manager

    async def states(self) -> AsyncGenerator[State, None]:
        """Yields the state, and each later one; a slow reader misses those in between."""
        with self._being_watched():
            state = self._state
            while not self._closed:
                yield state
                state = await self._state_after(state)

    async def run(self) -> None:
        """Reads the service until cancelled."""
        while True:
            await self._watched.wait()
            try:
                await self._read_until_failure()
                self._was_read.clear()
            except SharedPathwaysError as error:
                since = rfc3339(self._last_answer)
                await self._publish(
                    unreachable(self._state, since=since, error=error.message, hint=error.hint)
                )
                self._was_read.set()
                await asyncio.sleep(self._interval_s)

    async def close(self) -> None:
        """Ends all iterations of `states`."""
        self._closed = True
        async with self._changed:
            self._changed.notify_all()

    async def _read_until_failure(self) -> None:
        """Reads through one connection with the service; returns when no page is open."""
        async with contextlib.AsyncExitStack() as undo:
            try:
                manager = await undo.enter_async_context(self.reader.manager())
            except ServiceNotFound:
                await self._read_without_manager()
                return
            self._manager = manager
            undo.callback(setattr, self, "_manager", None)
            while self._watched.is_set():
                answer = await manager.ask(
                    manager.stub.GetStatus, pb.GetStatusRequest(), limit=timeouts.PAGE_ANSWER
                )
                await self._answered(_state_of(answer, manager, self._home))
                await asyncio.sleep(self._interval_s)

    async def _read_without_manager(self) -> None:
        """Reads what objects of the cluster show of a service whose manager reports nothing.

        Raises:
          ServiceNotFound: There is no service at all.
        """
        while self._watched.is_set():
            status = await asyncio.to_thread(self.reader.status)
            await self._answered(state_of(status["service"], status))
            await asyncio.sleep(max(self._interval_s, _SLOW_INTERVAL_S))

    async def _state_after(self, seen: State) -> State:
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or self._state is not seen)
            return self._state

    async def _answered(self, state: State) -> None:
        self._last_answer = time.time()
        await self._publish(state)
        self._was_read.set()

    async def _publish(self, state: State) -> None:
        if state != self._state:
            async with self._changed:
                self._state = state
                self._changed.notify_all()

    @contextlib.contextmanager
    def _being_watched(self) -> Iterator[None]:
        if not self._pages:
            # (The service was not read meanwhile: that it did not answer is not known.)
            self._last_answer = time.time()
        self._pages += 1
        self._watched.set()
        try:
            yield
        finally:
            self._pages -= 1
            if not self._pages:
                self._watched.clear()


def _state_of(answer: pb.GetStatusResponse, manager: Manager, home: str) -> State:
    service = {
        "address": manager.address,
        "version": manager.version,
        "home": home,
        "since": answer.since or None,
        "state": answer.state,
        "spares": answer.spares,
    }
    return state_of(service, {**detailed_occupancy_of(answer), "plans": plans_of(answer)})
