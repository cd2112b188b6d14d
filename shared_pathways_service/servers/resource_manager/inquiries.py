"""Answers queries about the resource manager's history: pages, explanations, usage."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.history.expectation import expect
from shared_pathways_service.scheduling.history.explanations import explain
from shared_pathways_service.scheduling.history.usage import Usage
from shared_pathways_service.servers.resource_manager.history_table import Filter
from shared_pathways_service.servers.resource_manager.history_wire import (
    decision_message,
    explanation_message,
    filter_of,
    usage_by,
    window_of,
)

if TYPE_CHECKING:
    from shared_pathways_service.servers.resource_manager.authority import Authority

__all__ = ["explained", "followed", "pages", "usage"]

#: The number of decisions in an explanation.
_LAST = 50


async def pages(
    authority: Authority, request: pb.GetHistoryRequest
) -> AsyncIterator[pb.HistoryPage]:
    """Yields the pages of a request.

    Raises:
      InvalidRequestError: The request is not valid.
      SharedPathwaysError: There is no history.
    """
    wanted = filter_of(request, authority.now)
    left = request.limit or sys.maxsize
    history = authority.history
    async for piece in history.read(wanted, after=request.after):
        messages = [decision_message(*one) for one in piece[:left]]
        yield pb.HistoryPage(events=messages)
        left -= len(messages)
        if not left:
            return
    yield pb.HistoryPage(last=history.last)


async def followed(
    authority: Authority, wanted: Filter, after: int
) -> AsyncIterator[pb.EventMessage]:
    """Yields the decisions of the history after `after`, to the last one.

    A follower that is added directly after the end misses no decision.
    """
    history = authority.history
    after = after if after <= history.last else 0
    async for piece in history.read(wanted, after=after):
        for one in piece:
            yield decision_message(*one)


def explained(authority: Authority, request: pb.ExplainRequest) -> pb.ExplainResponse:
    """Explains a tenant.

    Raises:
      InvalidRequestError: The tenant's name is not valid.
      ServiceNotFound: The tenant is not known.
    """
    name = check_dns_label("tenant", request.tenant)
    report, now = authority.report(), authority.now
    decisions = authority.history.last_of(name, _LAST)
    explanation = explain(
        name, report, decisions, expect(report, authority.holding_times, now), now
    )
    if explanation is None:
        known = sorted(tenant.name for tenant in report.tenants)
        raise ServiceNotFound(
            f"nothing is known of a tenant {name}",
            candidates=known,
            hint=f"the service has {', '.join(known) or 'no tenants'}",
        )
    return explanation_message(explanation, now)


async def usage(authority: Authority, request: pb.GetUsageRequest) -> pb.GetUsageResponse:
    """Computes usage.

    Raises:
      InvalidRequestError: The request is not valid.
    """
    by = usage_by(request)
    now = authority.now
    since, until = window_of(request.since, request.until, now)
    history = authority.history
    begin = max(since or 0.0, min(history.began or now, now))
    end = min(until or now, now)
    counted = Usage(by, begin, end)
    # A use that ended after the window may have begun in it.
    async for piece in history.read(Filter(since=begin)):
        for _, decision in piece:
            counted.add(decision)
    counted.add_status(authority.report(), authority.now)
    return pb.GetUsageResponse(
        rows=[
            pb.UsageRow(
                name=row.name,
                slice_s=row.slice_s,
                waiting_s=row.waiting_s,
                holdings=row.holdings,
                waits=row.waits,
            )
            for row in counted.rows()
        ],
        since=rfc3339(begin),
        until=rfc3339(max(begin, end)),
        window_s=max(0.0, end - begin),
        capacity=authority.capacity,
    )
