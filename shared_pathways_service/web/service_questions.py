"""Asks a resource manager about its past, for single requests of a page."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import decision_sentence
from shared_pathways_service.web.slice_history import KINDS, history_rows

__all__ = ["HISTORY_LIMIT", "explain", "read_history"]

#: Decisions in one answer; the page asks on from the last one.
HISTORY_LIMIT = 20_000


async def read_history(manager: Manager, since: float, after: int) -> dict[str, Any]:
    """Returns holdings and marks for the timeline, and where to go on.

    Args:
      manager: The resource manager.
      since: As in `GetHistoryRequest`.
      after: The ``last`` of the answer before this one; 0: this is the first.

    Returns:
      The rows of `history_rows`; ``last``; and ``complete``: whether the answer has all up to now.
    """
    request = pb.GetHistoryRequest(since=since, after=after, kinds=KINDS, limit=HISTORY_LIMIT)
    found: list[pb.EventMessage] = []
    last = after
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
    return {**history_rows(found), "last": last, "complete": len(found) < HISTORY_LIMIT}


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
