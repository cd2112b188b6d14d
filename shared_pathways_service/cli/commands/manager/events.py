"""`sps events`: what the resource manager decided, and what it decides from now on."""

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
from shared_pathways_service.cli.lookups.manager_calls import Manager, manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.rmclient.event_stream import EventStream
from shared_pathways_service.runtime.settings import Settings

__all__ = ["events"]

#: Seconds after which one that is away is given up.
_PATIENCE_S = 60.0
#: Seconds for a history of any length: it is read in small pieces, beside other work.
_HISTORY_S = 600.0
#: How the reading of a history ends for one who looks at it page by page: that is slower than the
#: server waits, and may be slower than the whole call may last.
_TOO_SLOW = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED}


@takes_place
def events(
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what is decided from now on.")
    ] = False,
    tenant: Annotated[
        str, typer.Option(help="Only of this one.", autocompletion=connection_names)
    ] = "",
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Begin: a span before now (1h, 7d), or a time."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Only this kind, e.g. slice.placed or placed; several are allowed."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="So many of the first at most; 0: all.")
    ] = 0,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show what the resource manager decided, the oldest first.

    With --follow nothing is missed and nothing told twice between what was and what comes, also
    when the resource manager is started again.
    """
    place.request()
    if follow and limit:
        raise InvalidRequestError("--limit", limit, "no --follow, which has no end")
    request = pb.GetHistoryRequest(
        since=parse_moment("--since", since), tenant=tenant, kinds=kind or (), limit=limit
    )
    asyncio.run(_show(place, request, follow=follow, as_json=as_json))


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
            last = await _tell_all(manager, request, show)
        if follow:
            await _follow(manager, request, last, show)


async def _tell_all(
    manager: Manager, request: pb.GetHistoryRequest, show: Callable[[pb.EventMessage], None]
) -> int:
    """Shows what was decided; returns the number of the last decision there is."""
    while True:
        pages = manager.stub.GetHistory(
            request, metadata=manager.metadata, wait_for_ready=True, timeout=_HISTORY_S
        )
        shown, last = 0, 0
        try:
            async for page in pages:
                for message in page.events:
                    show(message)
                    request.after = message.sequence
                    # A span before now would begin later when it is asked again, and what lies
                    # between would be passed over. From here on `after` says where to go on.
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
) -> None:
    """Shows what is decided behind `last`, over restarts of the resource manager."""
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
        patience_s=_PATIENCE_S,
    )
    async with manager.translating():
        await stream.follow(take)
