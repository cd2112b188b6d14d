"""`sps cordon`, `sps drain`, `sps uncordon`: take slices out of service and put them back."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.slice_marks import MarkedSlice, MarkVerb, mark_slice
from shared_pathways_service.runtime.settings import Settings

__all__ = ["cordon", "drain", "uncordon"]

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
    asyncio.run(_mark(place, "cordon", slice_id, wait=wait, as_json=as_json))


@takes_place
def drain(slice_id: _Slice, *, wait: _Wait = 0.0, as_json: AsJson = False, place: Place) -> None:
    """Cordon a slice, and move its holder to another one after a grace period.

    If no other slice is free, the holder keeps the slice until it ends.
    """
    place.request()
    asyncio.run(_mark(place, "drain", slice_id, wait=wait, as_json=as_json))


@takes_place
def uncordon(slice_id: _Slice, *, as_json: AsJson = False, place: Place) -> None:
    """Undo `sps cordon` or `sps drain`."""
    place.request()
    asyncio.run(_mark(place, "uncordon", slice_id, as_json=as_json))


async def _mark(
    place: Place, verb: MarkVerb, slice_id: str, *, wait: float = 0.0, as_json: bool
) -> None:
    """Marks a slice, and prints its state afterwards."""
    async with manager_of(place, Settings.load()) as manager:
        marked = await mark_slice(manager, verb, slice_id)
        if wait and marked.tenant:
            state, tenant = await _wait_until_free(place, manager, slice_id, wait)
            marked = dataclasses.replace(marked, state=state, tenant=tenant)
    if as_json:
        print_json(_as_dict(marked))
    else:
        print_line(marked.sentence)


def _as_dict(marked: MarkedSlice) -> dict[str, Any]:
    data: dict[str, Any] = {
        "slice": marked.slice_id,
        "state": marked.state,
        "tenant": marked.tenant or None,
    }
    if marked.is_drained:
        grace_s = round(marked.grace_s, 3) if marked.onto else None
        data |= {"onto": marked.onto or None, "grace_s": grace_s}
    return data


async def _wait_until_free(
    place: Place, manager: Manager, slice_id: str, wait: float
) -> tuple[str, str]:
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
                hint=f"`{place.command('explain', found.tenant)}` shows more; "
                f"`{place.command('delete', found.tenant)}` ends it if it is a connection",
            )
        await asyncio.sleep(_POLL_S)
