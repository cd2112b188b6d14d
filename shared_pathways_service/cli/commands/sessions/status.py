"""`sps status`: the embedded service of this user, who holds what, and who waits."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared_pathways_service.cli.display.output import AsJson, print_json, print_line
from shared_pathways_service.cli.display.serve_display import holder_of
from shared_pathways_service.cli.display.status_messages import reservation_line
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.embedded_status import read_status
from shared_pathways_service.cli.lookups.sessions import find_entry, metrics_of
from shared_pathways_service.cli.lookups.status_counters import (
    Told,
    late_callbacks_of,
    proxies_of,
    read_counters,
    text_of,
)
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.runtime.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["status"]


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
        from shared_pathways_service.cli.lookups.cluster_status import read_cluster_status  # noqa: PLC0415 - aiohttp

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
