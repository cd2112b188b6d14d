"""`sps stragglers`: shows how long programs take on each host, and which hosts are slow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from shared_pathways_service.api.shown_numbers import shown_digits, shown_seconds
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.lookups.completion import connection_names
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.lookups.sessions import place_of_tenant
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.operations.host_times import read_executor_times
from shared_pathways_service.runtime.settings import Settings

__all__ = ["stragglers"]

_HEAD = ("CONNECTION", "SLICE", "HOST", "PROGRAM", "CALLS", "MEDIAN", "P90", "TO PEERS", "NOTE")


@takes_place
def stragglers(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a connection. [default: the whole service]",
            show_default=False,
            autocompletion=connection_names,
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Show how long programs take on each host, and which hosts are slow.

    A host is compared with the others of its connection that run the same program. Hosts that wait
    for each other in a program, as in a sum over all of them, all take as long as the slowest one:
    such a program does not tell them apart.
    """
    place.request()
    settings = Settings.load()
    place = place_of_tenant(settings, name, place)
    found = asyncio.run(_read(place, settings, name))
    if as_json:
        print_json(found)
    elif found["engine"] == "local":
        print_line(
            "There is nothing to compare: this service has the engine local, with which each proxy "
            "computes by itself, on one machine."
        )
    else:
        _print(found["connections"])


async def _read(place: Place, settings: Settings, name: str | None) -> dict[str, Any]:
    async with manager_of(place, settings) as manager:
        return await read_executor_times(manager, name)


def _print(connections: Sequence[Mapping[str, Any]]) -> None:
    if not connections:
        print_line("The service has no connections.")
    rows = [row for one in connections for host in one["hosts"] for row in _rows(one, host)]
    if rows:
        print_table(_HEAD, rows)
    for one in connections:
        if note := _note(one):
            print_line(f"{one['name']}: {note}")


def _rows(connection: Mapping[str, Any], host: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for program in host["programs"]:
        where = str(host["host"]) + (f" ({host['machine']})" if host["machine"] else "")
        notes = [
            *(["slow"] if program["slow"] else []),
            *(["slowest host"] if host["slowest"] else []),
        ]
        yield (
            connection["name"],
            host["slice"],
            where,
            program["name"],
            str(program["calls"]),
            shown_seconds(program["median_s"]),
            shown_seconds(program["p90_s"]),
            "-" if program["ratio"] is None else f"{shown_digits(program['ratio'])}x",
            ", ".join(notes),
        )


def _note(connection: Mapping[str, Any]) -> str:
    """Returns why a connection has no times; empty: it has some."""
    hosts = connection["hosts"]
    if not hosts:
        return "it has no executors now"
    if len(hosts) == 1:
        return "it has one host, and so nothing to compare"
    if connection["age_s"] is None:
        return "its proxy has reported nothing yet (--proxy_counters_s of the resource manager)"
    if not any(host["programs"] for host in hosts):
        return "no program of 1 ms or more has run twice on its hosts"
    return ""
