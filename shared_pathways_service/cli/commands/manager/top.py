"""`sps top`: shows holders, executors, waiting tenants and utilization, continuously."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.display.decision_lines import reservation_line
from shared_pathways_service.cli.display.executor_display import (
    executor_place,
    shown_cpu,
    shown_cpu_time,
    shown_memory,
    shown_ratio,
)
from shared_pathways_service.cli.display.moments import ago
from shared_pathways_service.cli.display.output import AsJson, make_console, make_table, print_json
from shared_pathways_service.cli.display.serve_display import holder_of
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.service_occupancy import (
    detailed_occupancy_of,
)
from shared_pathways_service.operations.usage import read_usage, utilisation
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["top"]

_HOUR_S = 3600.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """A snapshot of the service.

    Attributes:
      data: As ``--json`` prints it.
      failure: Why there is no newer snapshot; empty if this is the newest.
    """

    data: Mapping[str, Any]
    failure: str = ""


@takes_place
def top(
    *,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.1, help="Refresh at this interval.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Show it once.")] = False,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show holders of slices, executors, waiting tenants and utilization, continuously.

    Of each executor it shows the memory and processor time that its worker last measured, and how
    many times as long programs take as on its peers (`sps stragglers`).
    --json prints one line per refresh. Ctrl-C ends the command.
    """
    place.request()
    asyncio.run(_run(place, interval, once=once, as_json=as_json))


async def _run(place: Place, interval: float, *, once: bool, as_json: bool) -> None:
    async with manager_of(place, Settings.load()) as manager:
        if once:
            await _show_once(manager, as_json=as_json)
        elif as_json:
            async for snapshot in _snapshots(manager, interval):
                if not snapshot.failure:
                    print_json(snapshot.data)
        else:
            await _draw(manager, interval)


async def _show_once(manager: Manager, *, as_json: bool) -> None:
    data = await _read(manager)
    if as_json:
        print_json(data)
    else:
        make_console().print(_table(_Snapshot(data=data)))


async def _draw(manager: Manager, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 - slow to import

    snapshots = _snapshots(manager, interval)
    with Live(_table(await anext(snapshots)), auto_refresh=False) as live:
        live.refresh()
        async for snapshot in snapshots:
            live.update(_table(snapshot), refresh=True)


async def _snapshots(manager: Manager, interval: float) -> AsyncGenerator[_Snapshot, None]:
    """Yields a snapshot per interval, across restarts of the resource manager."""
    snapshot = _Snapshot(data=await _read(manager))
    last_answer = time.monotonic()
    while True:
        yield snapshot
        await asyncio.sleep(interval)
        try:
            snapshot = _Snapshot(data=await _read(manager))
            last_answer = time.monotonic()
        except ServiceNotReady as error:
            # Most likely it restarts: keep showing the last snapshot.
            if time.monotonic() - last_answer > timeouts.MANAGER_AWAY.s:
                raise
            snapshot = dataclasses.replace(snapshot, failure=error.message)


async def _read(manager: Manager) -> dict[str, Any]:
    status = await manager.status()
    last_hour = await read_usage(manager, "type", -_HOUR_S)
    return {
        "service": {
            "address": manager.address,
            "version": manager.version,
            "state": status.state,
            "since": status.since,
            "spares": status.spares,
        },
        **detailed_occupancy_of(status),
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
            # A service younger than an hour has a shorter window.
            "last_hour_s": round(last_hour.window_s, 3),
        }
        for name, count in last_hour.capacity.items()
    ]


def _table(snapshot: _Snapshot) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    data = snapshot.data
    service = data["service"]
    head = [f"{service['state']} at {service['address']}, started {ago(service['since'])}"]
    for one in data["utilisation"]:
        now = one["held"] / one["slices"]
        past = f"{one['last_hour']:.0%} over the last {span(one['last_hour_s'])}"
        held = f"{one['held']} of {one['slices']} held ({now:.0%})"
        head.append(f"{one['instance_type']}: {held}, {past}")
    if service["spares"]:
        head.append(f"up to {service['spares']} of the free slices of each type reserved as spares")
    head += [f"reserved {reservation_line(one)}" for one in data["reservations"]]
    users = {one["name"]: f"{one['user'] or '?'}@{one['host'] or '?'}" for one in data["tenants"]}
    slices = make_table(
        ("SLICE", "TYPE", "STATE", "TENANT", "USER", "SINCE"),
        [
            (
                one["id"],
                one["instance_type"],
                one["state"],
                holder_of(one["state"], one["tenant"], one["virtual_index"]),
                users.get(one["tenant"], ""),
                ago(one["held_since"] or one["since"]),
            )
            for one in data["slices"]
        ],
    )
    parts: list[RenderableType] = [Text("\n".join(head)), Text(""), slices]
    if data["executors"]:
        parts += [Text(""), _executor_table(data["executors"])]
    if data["queue"]:
        parts += [Text(""), _queue_table(data["queue"], users)]
    if snapshot.failure:
        parts += [Text(""), Text(f"no newer data: {snapshot.failure}", style="bold")]
    return Group(*parts)


def _executor_table(executors: Sequence[Mapping[str, Any]]) -> RenderableType:
    rows = [
        (
            executor_place(one),
            one["tenant"] or "-",
            one["state"],
            shown_memory(one),
            shown_cpu(one),
            shown_cpu_time(one),
            shown_ratio(one),
        )
        for one in executors
    ]
    head = ("EXECUTOR", "TENANT", "STATE", "MEMORY", "CPU", "CPU TIME", "TO PEERS")
    return make_table(head, rows)


def _queue_table(queue: Sequence[Mapping[str, Any]], users: Mapping[str, str]) -> RenderableType:
    rows = []
    for one in queue:
        wants = ", ".join(f"{name}={count}" for name, count in one["wants"].items())
        expected = one["expected_wait_s"]
        rows.append(
            (
                str(one["position"]),
                one["tenant"],
                users.get(one["tenant"], ""),
                wants,
                span(one["waiting_s"]),
                "?" if expected is None else span(expected),
                one["reason"] or "",
            )
        )
    head = ("#", "TENANT", "USER", "WANTS", "WAITING", "EXPECTED", "REASON")
    return make_table(head, rows)
