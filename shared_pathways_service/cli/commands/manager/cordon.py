"""`sps cordon`, `sps drain`, `sps uncordon`: slices that an operator takes out, and gives back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.manager_calls import Manager, manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["cordon", "drain", "uncordon"]

_Marked = pb.CordonSliceResponse | pb.DrainSliceResponse | pb.UncordonSliceResponse
_Mark = Callable[[Manager], Awaitable[_Marked]]

#: Seconds between two looks while waiting.
_LOOK_S = 0.5

_Slice = Annotated[str, typer.Argument(help="As `sps status` names it, e.g. slice-0.")]
_Wait = Annotated[
    float,
    typer.Option(
        "--wait", min=0, metavar="SECONDS", help="Wait so long for nobody to hold it any more."
    ),
]


@takes_place
def cordon(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Have nobody new placed on a slice; who holds it keeps it."""
    place.request()
    request = pb.CordonSliceRequest(slice=slice_id)

    async def mark(manager: Manager) -> _Marked:
        return await manager.ask(manager.stub.CordonSlice, request)

    asyncio.run(_mark(place, slice_id, mark, wait=wait, as_json=as_json))


@takes_place
def drain(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Cordon a slice, and move its holder to another one after a notice and a grace.

    Where no other is free, its holder is left to end.
    """
    place.request()
    request = pb.DrainSliceRequest(slice=slice_id)

    async def mark(manager: Manager) -> _Marked:
        return await manager.ask(manager.stub.DrainSlice, request)

    asyncio.run(_mark(place, slice_id, mark, wait=wait, as_json=as_json))


@takes_place
def uncordon(slice_id: _Slice, *, as_json: AsJson = False, place: Place) -> None:
    """Undo `sps cordon` and `sps drain`."""
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
    """Has a slice marked, and shows how it stands then."""
    async with manager_of(place, Settings.load()) as manager:
        told = await mark(manager)
        state, tenant = told.state, told.tenant
        if wait and tenant:
            state, tenant = await _wait_until_free(manager, slice_id, wait)
    if as_json:
        data: dict[str, Any] = {"slice": slice_id, "state": state, "tenant": tenant or None}
        if isinstance(told, pb.DrainSliceResponse):
            grace_s = round(told.grace_s, 3) if told.onto else None
            data |= {"onto": told.onto or None, "grace_s": grace_s}
        print_json(data)
    else:
        print_line(f"{slice_id} is {state}; {_holder(told, tenant)}")


async def _wait_until_free(manager: Manager, slice_id: str, wait: float) -> tuple[str, str]:
    """Waits until nobody holds a slice; returns its state and its holder, which is none.

    Raises:
      ServiceNotReady: Somebody still does.
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
        await asyncio.sleep(_LOOK_S)


def _holder(told: _Marked, tenant: str) -> str:
    """Returns who holds a slice, and what becomes of that, in words."""
    if not tenant:
        return "nobody holds it"
    holds = f"{tenant} holds it"
    if not isinstance(told, pb.DrainSliceResponse):
        return holds
    if not told.onto:
        return f"{holds}, and ends by itself"
    return f"{holds}, and moves to {told.onto} in {told.grace_s:.1f} s"
