"""`sps cordon`, `sps drain`, `sps uncordon`: slices that an operator takes out, and gives back."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from shared_pathways_service.cli.cluster_options import Place, takes_place
from shared_pathways_service.cli.manager import ANSWER_S, Manager, manager_of
from shared_pathways_service.cli.output import AsJson, print_json, print_line
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.settings import Settings

__all__ = ["cordon", "drain", "uncordon"]

#: Seconds between two looks while waiting.
_LOOK_S = 0.5

_Slice = Annotated[str, typer.Argument(help="As `sps status` names it, e.g. slice-0.")]
_Wait = Annotated[
    float,
    typer.Option("--wait", metavar="SECONDS", help="Wait so long for nobody to hold it any more."),
]


@takes_place
def cordon(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Have nobody new placed on a slice; who holds it keeps it."""
    place.request()
    asyncio.run(_cordon(place, slice_id, wait, as_json=as_json))


@takes_place
def drain(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Cordon a slice, and move its holder to another one after a notice and a grace.

    Where no other is free, its holder is left to end.
    """
    place.request()
    asyncio.run(_drain(place, slice_id, wait, as_json=as_json))


@takes_place
def uncordon(slice_id: _Slice, *, as_json: AsJson = False, place: Place) -> None:
    """Undo `sps cordon` and `sps drain`."""
    place.request()
    asyncio.run(_uncordon(place, slice_id, as_json=as_json))


async def _cordon(place: Place, slice_id: str, wait: float, *, as_json: bool) -> None:
    async with manager_of(place, Settings.load()) as manager:
        call = manager.stub.CordonSlice(
            pb.CordonSliceRequest(slice=slice_id), metadata=manager.metadata, timeout=ANSWER_S
        )
        told = await manager.answer(call)
        state, tenant = told.state, told.tenant
        if wait and tenant:
            state, tenant = await _wait_until_free(manager, slice_id, wait)
    _show(slice_id, state, tenant, as_json=as_json)


async def _drain(place: Place, slice_id: str, wait: float, *, as_json: bool) -> None:
    async with manager_of(place, Settings.load()) as manager:
        call = manager.stub.DrainSlice(
            pb.DrainSliceRequest(slice=slice_id), metadata=manager.metadata, timeout=ANSWER_S
        )
        told = await manager.answer(call)
        state, tenant = told.state, told.tenant
        where = f"moves to {told.onto} in {told.grace_s:g} s" if told.onto else "ends by itself"
        if wait and tenant:
            state, tenant = await _wait_until_free(manager, slice_id, wait)
    _show(slice_id, state, tenant, where, as_json=as_json)


async def _uncordon(place: Place, slice_id: str, *, as_json: bool) -> None:
    async with manager_of(place, Settings.load()) as manager:
        call = manager.stub.UncordonSlice(
            pb.UncordonSliceRequest(slice=slice_id), metadata=manager.metadata, timeout=ANSWER_S
        )
        told = await manager.answer(call)
    _show(slice_id, told.state, told.tenant, as_json=as_json)


async def _wait_until_free(manager: Manager, slice_id: str, wait: float) -> tuple[str, str]:
    """Waits until nobody holds a slice; returns its state and its holder, which is none.

    Raises:
      ServiceNotReady: Somebody still does.
    """
    deadline = time.monotonic() + wait
    while True:
        call = manager.stub.GetStatus(
            pb.GetStatusRequest(), metadata=manager.metadata, timeout=ANSWER_S, wait_for_ready=True
        )
        status = await manager.answer(call)
        found = next((one for one in status.slices if one.id == slice_id), None)
        if found is None or not found.tenant:
            return ("gone" if found is None else found.state), ""
        if time.monotonic() >= deadline:
            raise ServiceNotReady(
                f"{found.tenant} still holds {slice_id} after {wait:g} s",
                hint=f"`sps explain {found.tenant}` shows more; `sps delete` ends a connection",
            )
        await asyncio.sleep(_LOOK_S)


def _show(slice_id: str, state: str, tenant: str, where: str = "", *, as_json: bool) -> None:
    if as_json:
        print_json({"slice": slice_id, "state": state, "tenant": tenant or None})
        return
    holder = f"; {tenant} holds it" if tenant else "; nobody holds it"
    print_line(f"{slice_id} is {state}{holder}{f', and {where}' if tenant and where else ''}")
