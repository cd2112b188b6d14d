"""`sps events`: shows past decisions of the resource manager, and follows new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import grpc
import grpc.aio
import typer

from shared_pathways_service.cli.display.decision_lines import decision_dict, decision_line
from shared_pathways_service.cli.display.moments import parse_moment
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.lookups.sessions import place_of_tenant
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.rmclient.event_stream import EventStream
from shared_pathways_service.runtime.settings import Settings

__all__ = ["events"]

#: Codes with which a call ends if its output is read slowly, as through a pager: the server waits
#: only so long for each page, and the whole call has a deadline.
_TOO_SLOW = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}


@takes_place
def events(
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow new decisions.")] = False,
    tenant: Annotated[
        str,
        typer.Option(
            help="Show only decisions about this tenant.", autocompletion=connection_names
        ),
    ] = "",
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Start so long ago (1h, 7d), or at a time."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Show only this kind, e.g. slice.placed, placed or slice; repeatable."),
    ] = None,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", "-n", min=0, help="Show at most so many of the first ones; 0: all."
        ),
    ] = 0,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show the decisions of the resource manager, oldest first.

    --follow has no gaps and no duplicates, also when the resource manager restarts.
    """
    place.request()
    if follow and limit:
        raise InvalidRequestError(
            "--limit", limit, "either --limit or --follow, which does not end"
        )
    request = pb.GetHistoryRequest(
        since=parse_moment("--since", since), tenant=tenant, kinds=kind or (), limit=limit
    )
    place = place_of_tenant(Settings.load(), tenant, place)
    try:
        asyncio.run(_show(place, request, follow=follow, as_json=as_json))
    except InvalidRequestError as error:
        if error.field != "kinds":
            raise
        # (The resource manager knows the kinds.)
        raise InvalidRequestError("--kind", error.value, error.expected) from None


async def _show(
    place: Place, request: pb.GetHistoryRequest, *, follow: bool, as_json: bool
) -> None:
    def show(message: pb.EventMessage) -> None:
        if as_json:
            print_json(decision_dict(message))
        else:
            print_line(decision_line(message))

    async with manager_of(place, Settings.load()) as manager:
        async with manager.translating():
            last = await _show_history(manager, request, show)
        if follow:
            await _follow(manager, request, last, show)


async def _show_history(
    manager: Manager, request: pb.GetHistoryRequest, show: Callable[[pb.EventMessage], None]
) -> int:
    """Shows past decisions; returns the sequence number of the last one."""
    while True:
        pages = manager.stub.GetHistory(
            request,
            metadata=manager.metadata,
            wait_for_ready=True,
            timeout=timeouts.WHOLE_HISTORY.s,
        )
        shown, last = 0, 0
        try:
            async for page in pages:
                for message in page.events:
                    show(message)
                    request.after = message.sequence
                    # A relative start would move on with the next request and leave a gap. From
                    # here on `after` is the start.
                    request.since = 0
                shown += len(page.events)
                last = page.last
        except grpc.aio.AioRpcError as error:
            if error.code() not in _TOO_SLOW or not shown:
                raise
            if request.limit:
                request.limit -= shown
                if not request.limit:
                    return last
        else:
            return last


async def _follow(
    manager: Manager,
    request: pb.GetHistoryRequest,
    last: int,
    show: Callable[[pb.EventMessage], None],
    away: Timeout = timeouts.MANAGER_AWAY,
) -> None:
    """Shows decisions after `last`, across restarts of the resource manager."""
    versions = pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX)

    def watch_request() -> pb.WatchRequest:
        return pb.WatchRequest(
            versions=versions, tenant=request.tenant, kinds=request.kinds, after=last
        )

    def take(message: pb.EventMessage) -> None:
        nonlocal last
        show(message)
        last = message.sequence

    stream = EventStream(
        manager.stub,
        watch_request,
        metadata=manager.metadata,
        patience_s=away.s,
    )
    async with manager.translating():
        await stream.follow(take)
