"""`sps top`: who holds what, who waits for what and how long, and how much of it is in use."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.commands.manager.usage import read_usage, utilisation
from shared_pathways_service.cli.display.moments import shown
from shared_pathways_service.cli.display.output import AsJson, print_json
from shared_pathways_service.cli.display.serve_display import holder_of
from shared_pathways_service.cli.display.status_messages import occupancy_of, reservation_line
from shared_pathways_service.cli.lookups.manager_calls import Manager, manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["top"]

_HOUR_S = 3600.0
#: Seconds that a resource manager may be away before it is given up.
_PATIENCE_S = 60.0
#: Columns where there is no terminal.
_WIDE = 240


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Picture:
    """How things stand.

    Attributes:
      told: As ``--json`` prints it.
      away: Why there is nothing newer; empty: there is.
    """

    told: Mapping[str, Any]
    away: str = ""


@takes_place
def top(
    *,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Between two looks.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show who holds what, who waits for what, and how much is in use, again and again.

    With --json each look is one line. Ctrl-C ends it.
    """
    place.request()
    asyncio.run(_run(place, interval, once=once, as_json=as_json))


async def _run(place: Place, interval: float, *, once: bool, as_json: bool) -> None:
    async with manager_of(place, Settings.load()) as manager:
        if once:
            await _show_once(manager, as_json=as_json)
        elif as_json:
            async for picture in _looks(manager, interval):
                if not picture.away:
                    print_json(picture.told)
        else:
            await _draw(manager, interval)


async def _show_once(manager: Manager, *, as_json: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import

    told = await _look(manager)
    if as_json:
        print_json(told)
    else:
        # (What is cut off at the width of no terminal would be lost.)
        width = None if sys.stdout.isatty() else _WIDE
        console = Console(width=width, highlight=False, markup=False)
        console.print(_table(_Picture(told=told)))


async def _draw(manager: Manager, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 - slow to import

    looks = _looks(manager, interval)
    with Live(_table(await anext(looks)), auto_refresh=False) as live:
        live.refresh()
        async for picture in looks:
            live.update(_table(picture), refresh=True)


async def _looks(manager: Manager, interval: float) -> AsyncGenerator[_Picture, None]:
    """Yields how things stand, again and again, over restarts of the resource manager."""
    picture = _Picture(told=await _look(manager))
    heard_at = time.monotonic()
    while True:
        yield picture
        await asyncio.sleep(interval)
        try:
            picture = _Picture(told=await _look(manager))
            heard_at = time.monotonic()
        except ServiceNotReady as error:
            # It is started again, most likely: what was last known stays to be seen.
            if time.monotonic() - heard_at > _PATIENCE_S:
                raise
            picture = dataclasses.replace(picture, away=error.message)


async def _look(manager: Manager) -> dict[str, Any]:
    status = await manager.status()
    last_hour = await read_usage(manager, "type", -_HOUR_S)
    told = occupancy_of(status)
    for entry, queued in zip(status.queue, told["queue"], strict=True):
        known = entry.HasField("expected_wait_s")
        queued["expected_wait_s"] = entry.expected_wait_s if known else None
    for found, item in zip(status.slices, told["slices"], strict=True):
        item["held_since"] = found.held_since or None
    return {
        "service": {
            "address": manager.address,
            "version": manager.version,
            "state": status.state,
            "since": status.since,
            "spares": status.spares,
        },
        **told,
        "utilisation": _shares(status, last_hour),
    }


def _shares(status: pb.GetStatusResponse, last_hour: pb.GetUsageResponse) -> list[dict[str, Any]]:
    hour = utilisation(last_hour)
    return [
        {
            "instance_type": name,
            "slices": count,
            "held": sum(s.instance_type == name and bool(s.tenant) for s in status.slices),
            "last_hour": round(hour.get(name, 0.0), 4),
            # A service that is younger than an hour has less behind it.
            "last_hour_s": round(last_hour.window_s, 3),
        }
        for name, count in last_hour.capacity.items()
    ]


def _table(picture: _Picture) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    told = picture.told
    service = told["service"]
    head = [f"{service['state']} at {service['address']} since {shown(service['since'])}"]
    for one in told["utilisation"]:
        now = one["held"] / one["slices"]
        past = f"{one['last_hour']:.0%} over the last {span(one['last_hour_s'])}"
        held = f"{one['held']} of {one['slices']} held ({now:.0%})"
        head.append(f"{one['instance_type']}: {held}, {past}")
    if service["spares"]:
        head.append(f"up to {service['spares']} of the free slices of each type kept as spare")
    head += [f"reserved {reservation_line(one)}" for one in told["reservations"]]
    users = {one["name"]: f"{one['user'] or '?'}@{one['host'] or '?'}" for one in told["tenants"]}
    slices = Table("SLICE", "TYPE", "STATE", "TENANT", "USER", "SINCE", box=None)
    for one in told["slices"]:
        slices.add_row(
            one["id"],
            one["instance_type"],
            one["state"],
            holder_of(one["state"], one["tenant"], one["virtual_index"]),
            users.get(one["tenant"], ""),
            shown(one["held_since"] or one["since"] or "-"),
        )
    parts: list[RenderableType] = [Text("\n".join(head)), Text(""), slices]
    if told["queue"]:
        queue = Table("#", "WAITS", "USER", "WANTS", "FOR", "EXPECTED", "REASON", box=None)
        for one in told["queue"]:
            expected = one["expected_wait_s"]
            queue.add_row(
                str(one["position"]),
                one["tenant"],
                users.get(one["tenant"], ""),
                ", ".join(f"{name}={count}" for name, count in one["wants"].items()),
                span(one["waiting_s"]),
                "?" if expected is None else span(expected),
                one["reason"] or "",
            )
        parts += [Text(""), queue]
    if picture.away:
        parts += [Text(""), Text(f"as of a while ago: {picture.away}", style="bold")]
    return Group(*parts)
