"""`sps cordon`, `sps drain`, `sps uncordon`: take slices out of service and put them back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["cordon", "drain", "uncordon"]

_Marked = pb.CordonSliceResponse | pb.DrainSliceResponse | pb.UncordonSliceResponse
_Mark = Callable[[Manager], Awaitable[_Marked]]

#: Seconds between two polls while waiting.
_POLL_S = 0.5

_Slice = Annotated[str, typer.Argument(help="Name of the slice, as in `sps status`, e.g. slice-0.")]
_Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="Wait so long for its holder to release it."
    ),
]


@takes_place
def cordon(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Stop new placements on a slice; its holder keeps it."""
    place.request()
    request = pb.CordonSliceRequest(slice=slice_id)

    async def mark(manager: Manager) -> _Marked:
        return await manager.ask(manager.stub.CordonSlice, request)

    asyncio.run(_mark(place, slice_id, mark, wait=wait, as_json=as_json))


@takes_place
def drain(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Cordon a slice, and move its holder to another one after a grace period.

    If no other slice is free, the holder keeps the slice until it ends.
    """
    place.request()
    request = pb.DrainSliceRequest(slice=slice_id)

    async def mark(manager: Manager) -> _Marked:
        return await manager.ask(manager.stub.DrainSlice, request)

    asyncio.run(_mark(place, slice_id, mark, wait=wait, as_json=as_json))


@takes_place
def uncordon(slice_id: _Slice, *, as_json: AsJson = False, place: Place) -> None:
    """Undo `sps cordon` or `sps drain`."""
    place.request()
    request = pb.UncordonSliceRequest(slice=slice_id)

    async def mark(manager: Manager) -> _Marked:
        return await manager.ask(manager.stub.UncordonSlice, request)

    asyncio.run(_mark(place, slice_id, mark, as_json=as_json))


async def _mark(
    place: Place,
    slice_id: str,
    mark: _Mark,
    *,
    wait: float = 0.0,
    as_json: bool,
) -> None:
    """Marks a slice, and prints its state afterwards."""
    async with manager_of(place, Settings.load()) as manager:
        marked = await mark(manager)
        state, tenant = marked.state, marked.tenant
        if wait and tenant:
            state, tenant = await _wait_until_free(manager, slice_id, wait)
    if as_json:
        data: dict[str, Any] = {"slice": slice_id, "state": state, "tenant": tenant or None}
        if isinstance(marked, pb.DrainSliceResponse):
            grace_s = round(marked.grace_s, 3) if marked.onto else None
            data |= {"onto": marked.onto or None, "grace_s": grace_s}
        print_json(data)
    else:
        print_line(f"{slice_id} is {state}; {_holder(marked, tenant)}")


async def _wait_until_free(manager: Manager, slice_id: str, wait: float) -> tuple[str, str]:
    """Waits until a slice has no holder; returns its state and an empty holder.

    Raises:
      ServiceNotReady: The slice still has a holder.
    """
    deadline = time.monotonic() + wait
    while True:
        status = await manager.status()
        found = next((one for one in status.slices if one.id == slice_id), None)
        if found is None or not found.tenant:
            return ("gone" if found is None else found.state), ""
        if time.monotonic() >= deadline:
            raise ServiceNotReady(
                f"{found.tenant} still holds {slice_id} after {wait:g} s",
                hint=f"`sps explain {found.tenant}` shows more; `sps delete` ends a connection",
            )
        await asyncio.sleep(_POLL_S)


def _holder(marked: _Marked, tenant: str) -> str:
    """Returns a sentence about the holder of a slice, and about its move."""
    if not tenant:
        return "it has no holder"
    holds = f"{tenant} holds it"
    if not isinstance(marked, pb.DrainSliceResponse):
        return holds
    if not marked.onto:
        return f"{holds} until it ends"
    return f"{holds}, and moves to {marked.onto} in {marked.grace_s:.1f} s"
