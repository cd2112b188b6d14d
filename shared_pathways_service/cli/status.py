"""`sps status`: the embedded service of this user, who holds what, and who waits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import grpc.aio
import typer

from shared_pathways_service.cli.cluster_options import Place, takes_place
from shared_pathways_service.cli.completion import connection_names
from shared_pathways_service.cli.embedded_link import embedded_link
from shared_pathways_service.cli.output import AsJson, print_json, print_line
from shared_pathways_service.cli.serve_display import holder_of
from shared_pathways_service.cli.sessions import find_entry, metrics_of
from shared_pathways_service.cli.status_counters import (
    Told,
    late_callbacks_of,
    limits_of,
    proxies_of,
    read_counters,
    text_of,
)
from shared_pathways_service.cli.status_messages import occupancy_of, only, reservation_line
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound, ServiceNotReady
from shared_pathways_service.homes.embedded_service import ServiceLink
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import supervisor_pb2 as sup_pb
from shared_pathways_service.protocol.status import error_of
from shared_pathways_service.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["read_status", "status"]

_Answer = TypeVar("_Answer")

#: Seconds for the service to answer; a resource manager that restarts has them too.
_ANSWER_S = 10.0
#: Seconds between two looks while waiting.
_LOOK_S = 0.1


@takes_place
def status(
    name: Annotated[
        str | None,
        typer.Argument(
            help="One connection; without it, the whole service.", autocompletion=connection_names
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    openmetrics: Annotated[
        bool,
        typer.Option(
            "--openmetrics",
            help="Print what the proxies count, as OpenMetrics text; the embedded service's only.",
        ),
    ] = False,
    wait: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Wait so long for the service and all its slices."),
    ] = 0.0,
    place: Place,
) -> None:
    """Show the service: its processes, its slices, who holds them, and who waits."""
    settings = Settings.load()
    place.request()
    entry = find_entry(settings, name, place) if name else None
    counters: Told = {}
    if entry is not None and entry.home.name == "kubernetes":
        place = dataclasses.replace(Place.of(entry), pathways_service=entry.service or None)
    if openmetrics and (as_json or place.is_cluster):
        raise InvalidRequestError(
            "--openmetrics",
            "with --json" if as_json else "of a cluster",
            "no --json, and the embedded service: proxies in a cluster are asked by nobody",
        )
    if place.is_cluster:
        from shared_pathways_service.cli.cluster_status import (  # noqa: PLC0415 - aiohttp
            read_cluster_status,
        )

        told = asyncio.run(read_cluster_status(place, settings, name, wait_s=wait))
    else:
        told = read_status(settings, name, wait_s=wait)
        counters = asyncio.run(read_counters(settings, name))
        told["proxies"] = proxies_of(counters)
        told["late_callbacks"] = late_callbacks_of(counters)
    told["agents"] = metrics_of(settings, place, name)
    if openmetrics:
        print_line(text_of(counters).removesuffix("\n"))
    elif as_json:
        print_json(told)
    else:
        _print_tables(told)


def read_status(
    settings: Settings, name: str | None = None, *, wait_s: float = 0.0
) -> dict[str, Any]:
    """Returns what ``sps status --json`` prints.

    Args:
      settings: Where the service is looked for.
      name: A connection; None: all of them.
      wait_s: Seconds for the service to be there with all slices ready; 0: whatever there is.

    Raises:
      ServiceNotFound: There is no service, or no connection of that name.
      ServiceNotReady: It does not answer, or not all slices were ready in time.
    """
    deadline = time.monotonic() + wait_s
    while time.monotonic() < deadline:
        with contextlib.suppress(ServiceNotFound, ServiceNotReady):
            told, to_come = asyncio.run(_read(settings, name))
            if not to_come and not _unready(told):
                return told
        time.sleep(_LOOK_S)
    told, to_come = asyncio.run(_read(settings, name))
    unready = [*_unready(told), *([f"{to_come} that never came"] if to_come else [])]
    if wait_s and unready:
        raise ServiceNotReady(
            f"not ready within {wait_s:g} s: {', '.join(unready)}",
            ready=len(told["slices"]) - len(_unready(told)),
            wanted=len(told["slices"]) + to_come,
            pods=unready,
        )
    return told


def _unready(told: Mapping[str, Any]) -> list[str]:
    return [item["id"] for item in told["slices"] if item["state"] != "ready"]


async def _read(settings: Settings, name: str | None) -> tuple[dict[str, Any], int]:
    """Returns what there is, and how many slices of the service nobody has heard of yet."""
    async with embedded_link(settings) as link:
        supervisor, manager = await _ask(link)
    told = {
        "service": {
            "address": link.state.address,
            "version": link.state.version,
            "home": "embedded",
            "since": link.state.since,
            "proxy_limits": limits_of(supervisor.proxy_limits),
            "spares": manager.spares,
        },
        "processes": [_process(process) for process in supervisor.processes],
        **occupancy_of(manager),
    }
    # The resource manager learns of a slice from its first worker.
    planned = sum(count + link.state.spares for count in link.state.slices.values())
    to_come = max(0, planned - len(manager.slices))
    if name is not None:
        told = only(told, name, {proxy.name for proxy in supervisor.proxies})
    return told, to_come


async def _ask(link: ServiceLink) -> tuple[sup_pb.GetProcessesResponse, rm_pb.GetStatusResponse]:
    processes = link.supervisor.GetProcesses(
        sup_pb.GetProcessesRequest(),
        metadata=link.metadata,
        timeout=_ANSWER_S,
        wait_for_ready=True,
    )
    occupancy = link.resource_manager.GetStatus(
        rm_pb.GetStatusRequest(), metadata=link.metadata, timeout=_ANSWER_S, wait_for_ready=True
    )
    return await asyncio.gather(
        _answer(processes, "the supervisor of the service", link),
        _answer(occupancy, "the resource manager of the service", link),
    )


async def _answer(call: Awaitable[_Answer], who: str, link: ServiceLink) -> _Answer:
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error, service=who, address=link.state.address) from error


def _process(process: sup_pb.GetProcessesResponse.Process) -> dict[str, Any]:
    return {
        "role": process.role,
        "name": process.name or None,
        "pid": process.pid,
        "port": process.port or None,
        "slice": process.slice or None,
        "restarts": process.restarts,
    }


def _print_tables(told: Mapping[str, Any]) -> None:
    from rich.console import Console  # noqa: PLC0415 - slow to import
    from rich.table import Table  # noqa: PLC0415

    console = Console(soft_wrap=True, highlight=False, markup=False)
    service = told["service"]
    console.print(f"{service['home']} service {service['version']} at {service['address']}")
    console.print(f"since {service['since']}, {len(told['processes'])} processes\n")
    _print_amiss(console, told["processes"])
    slices = Table("SLICE", "TYPE", "STATE", "TENANT", "SINCE", box=None)
    for item in told["slices"]:
        holder = holder_of(item["state"], item["tenant"], item["virtual_index"])
        since = item["since"] or "-"
        slices.add_row(item["id"], item["instance_type"], item["state"], holder, since)
    console.print(slices)
    if told["tenants"]:
        tenants = Table("TENANT", "USER", "PRIORITY", "STATE", "SLICES", "SINCE", box=None)
        for tenant in told["tenants"]:
            held = ", ".join(
                f"{s['index']}: {s['slice_id'] or s['state'] or s['instance_type']}"
                for s in tenant["slices"]
            )
            user = f"{tenant['user'] or '?'}@{tenant['host'] or '?'}"
            priority = "-" if tenant["priority"] is None else str(tenant["priority"])
            since = tenant["since"] or "-"
            tenants.add_row(tenant["name"], user, priority, tenant["state"], held, since)
        console.print()
        console.print(tenants)
    for entry in told["queue"]:
        wants = ", ".join(f"{name}={count}" for name, count in entry["wants"].items())
        console.print(
            f"\nqueue {entry['position']}: {entry['tenant']} wants {wants}, "
            f"waiting {entry['waiting_s']:.0f} s ({entry['reason'] or 'no reason'})"
        )
    for call in told.get("late_callbacks", ()):
        console.print(
            f"\n{call['connection']}: program {call['program']} has waited {call['seconds']:.0f} s "
            f"for its callback {call['function']} to return"
        )
    _print_reservations(console, told.get("reservations", ()))
    for agent in told["agents"]:
        console.print(f"\nmetrics of {agent['name']}: {agent['metrics']}")


def _print_reservations(console: Console, told: Sequence[Mapping[str, Any]]) -> None:
    if told:
        console.print()
    for one in told:
        console.print(f"reserved {reservation_line(one)}")


def _print_amiss(console: Console, processes: Sequence[Mapping[str, Any]]) -> None:
    """Shows which pods are not as they should be, and why."""
    for process in processes:
        if process.get("state") not in (None, "ready"):
            console.print(f"{process['role']} {process['name']}: {process['state']}")
