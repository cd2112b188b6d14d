"""Asks a resource manager about its past, for all open pages."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import decision_sentence
from shared_pathways_service.web.seldom_read import SeldomRead
from shared_pathways_service.web.slice_history import KINDS, history_rows
from shared_pathways_service.web.usage_over_time import held_over_time

__all__ = ["HISTORY_LIMIT", "HeldOverTime", "LastDecisions", "explain", "read_history"]

#: Decisions in one answer; the page asks on from the last one.
HISTORY_LIMIT: Final = 20_000
#: Decisions that are added up for one chart at most.
_MOST: Final = 400_000
#: Different charts whose answers are kept.
_MOST_KEPT: Final = 20
#: Windows of which the last decisions are read, in seconds: the first with enough of them.
_RECENT: Final = (600.0, 3600.0, 86_400.0, 14 * 86_400.0)


async def read_history(
    manager: Manager, since: float, after: int, tenant: str = ""
) -> dict[str, Any]:
    """Returns holdings and marks for the timeline, and where to go on.

    Args:
      manager: The resource manager.
      since: As in `GetHistoryRequest`.
      after: The ``last`` of the answer before this one; 0: this is the first.
      tenant: Only those of a tenant; empty: of all.

    Returns:
      The rows of `history_rows`; ``last``; and ``complete``: whether the answer has all up to now.
    """
    request = pb.GetHistoryRequest(
        since=since, after=after, kinds=KINDS, limit=HISTORY_LIMIT, tenant=tenant
    )
    found, last = await _decisions(manager, request)
    return {**history_rows(found), "last": last, "complete": len(found) < HISTORY_LIMIT}


class HeldOverTime:
    """Adds up held slices over time, one chart at a time, and seldom enough to cost little."""

    def __init__(self) -> None:
        self._answers = SeldomRead[tuple[str, float, int], dict[str, Any]](_MOST_KEPT)

    async def read(
        self,
        manager: Manager,
        going_on: Iterable[Mapping[str, Any]],
        *,
        by: str,
        window_s: float,
        parts: int,
    ) -> dict[str, Any]:
        """Returns the answer of `held_over_time` for the last seconds of a service.

        Args:
          manager: The resource manager.
          going_on: Holdings that have not ended, as rows of `history_rows`.
          by: As there.
          window_s: Seconds up to now.
          parts: As there.

        Returns:
          The answer, and ``complete``: whether the whole history of the window is in it.
        """

        async def find(_known: dict[str, Any] | None) -> dict[str, Any]:
            found, is_complete = await _all_decisions(manager, window_s)
            going = list(going_on)

            def add_up() -> dict[str, Any]:
                now = time.time()
                holdings = [*history_rows(found)["holdings"], *going]
                return held_over_time(holdings, by=by, since=now - window_s, until=now, parts=parts)

            return {**await asyncio.to_thread(add_up), "complete": is_complete}

        return await self._answers.get((by, window_s, parts), find)


class LastDecisions:
    """The last decisions of a resource manager, of which each is read once for all pages.

    Args:
      count: How many.
    """

    def __init__(self, count: int) -> None:
        self._found: deque[dict[str, Any]] = deque(maxlen=count)
        self._last = 0
        self._manager: Manager | None = None
        self._lock = asyncio.Lock()

    async def read(self, manager: Manager) -> list[dict[str, Any]]:
        """Returns the decisions, the latest first."""
        async with self._lock:
            if manager is not self._manager:
                # (It may be another service, with numbers of its own.)
                await self._begin(manager)
                self._manager = manager
            else:
                found, self._last = await _decisions(
                    manager, pb.GetHistoryRequest(after=self._last)
                )
                self._found.extend(map(_shown, found))
        return list(reversed(self._found))

    async def _begin(self, manager: Manager) -> None:
        for window_s in _RECENT:
            found, self._last = await _decisions(manager, pb.GetHistoryRequest(since=-window_s))
            if len(found) >= (self._found.maxlen or 0):
                break
        self._found.clear()
        self._found.extend(map(_shown, found[-(self._found.maxlen or 0) :]))


async def explain(manager: Manager, tenant: str) -> dict[str, Any]:
    """Returns why a tenant waits, was moved, was refused or ended."""
    answer = await manager.ask(manager.stub.Explain, pb.ExplainRequest(tenant=tenant))
    decisions = [{"time": one.time, "text": decision_sentence(one)} for one in answer.decisions]
    return {
        "tenant": answer.tenant,
        "state": answer.state,
        "sentences": list(answer.sentences),
        "decisions": decisions,
    }


def _shown(one: pb.EventMessage) -> dict[str, Any]:
    return {
        "sequence": one.sequence,
        "time": one.time,
        "tenant": one.tenant or None,
        "text": decision_sentence(one),
    }


async def _all_decisions(manager: Manager, window_s: float) -> tuple[list[pb.EventMessage], bool]:
    """Returns the decisions of a window, and whether these are all of them."""
    found: list[pb.EventMessage] = []
    request = pb.GetHistoryRequest(since=-window_s, kinds=KINDS, limit=HISTORY_LIMIT)
    while len(found) < _MOST:
        more, request.after = await _decisions(manager, request)
        found += more
        if len(more) < HISTORY_LIMIT:
            return found, True
    return found, False


async def _decisions(
    manager: Manager, request: pb.GetHistoryRequest
) -> tuple[list[pb.EventMessage], int]:
    """Returns decisions, and the sequence number of the last one that was looked at."""
    found: list[pb.EventMessage] = []
    last = request.after
    async with manager.translating():
        pages = manager.stub.GetHistory(
            request,
            metadata=manager.metadata,
            wait_for_ready=True,
            timeout=timeouts.HISTORY_ANSWER.s,
        )
        async for page in pages:
            found += page.events
            last = max(last, page.last, *(one.sequence for one in page.events))
    return found, last
