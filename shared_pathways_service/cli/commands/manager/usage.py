"""`sps usage`: who used how much of the service."""

from __future__ import annotations

import asyncio
import csv
import enum
import io
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.moments import parse_moment, shown
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.lookups.manager_calls import Manager, manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span

__all__ = ["read_usage", "usage", "utilisation"]

#: Seconds for an answer: a long history is read in small pieces, beside other work.
_ANSWER_S = 120.0
_HOUR_S = 3600.0


class _By(enum.StrEnum):
    TENANT = "tenant"
    USER = "user"
    TEAM = "team"
    TYPE = "type"


@takes_place
def usage(
    *,
    by: Annotated[_By, typer.Option(help="What a row is about.")] = _By.USER,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Begin: a span before now (7d, 1h), or a time.")
    ] = "7d",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="End; without it, now.")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    place: Place,
) -> None:
    """Show who used how much: slice-hours held, and hours in the queue.

    Two slices held for an hour are two slice-hours. What still goes on counts as far as it goes.
    """
    place.request()
    if as_json and as_csv:
        raise InvalidRequestError("--csv", "with --json", "one of them")
    window = parse_moment("--since", since), parse_moment("--until", until)
    told = asyncio.run(_read(place, by, *window))
    if as_json:
        print_json(_as_dict(told, by))
    elif as_csv:
        print_line(_as_csv(told, by))
    else:
        _print(told, by)


async def _read(place: Place, by: _By, since: float, until: float) -> pb.GetUsageResponse:
    async with manager_of(place, Settings.load()) as manager:
        return await read_usage(manager, by, since, until)


async def read_usage(
    manager: Manager, by: str, since: float, until: float = 0.0
) -> pb.GetUsageResponse:
    """Asks for the usage of a window, as `GetUsageRequest` has it."""
    request = pb.GetUsageRequest(by=by, since=since, until=until)
    return await manager.ask(manager.stub.GetUsage, request, timeout_s=_ANSWER_S)


def _rows(told: pb.GetUsageResponse, by: _By) -> list[dict[str, Any]]:
    return [
        {
            by.value: row.name or None,
            "slice_seconds": round(row.slice_s, 3),
            "waiting_seconds": round(row.waiting_s, 3),
            "holdings": row.holdings,
            "waits": row.waits,
        }
        for row in told.rows
    ]


def _as_dict(told: pb.GetUsageResponse, by: _By) -> dict[str, Any]:
    return {
        "since": told.since,
        "until": told.until,
        "by": by.value,
        "capacity": dict(told.capacity),
        "rows": _rows(told, by),
    }


def _as_csv(told: pb.GetUsageResponse, by: _By) -> str:
    text = io.StringIO()
    names = [by.value, "slice_seconds", "waiting_seconds", "holdings", "waits"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(told, by))
    return text.getvalue().removesuffix("\n")


def _print(told: pb.GetUsageResponse, by: _By) -> None:
    print_line(f"from {shown(told.since)} to {shown(told.until)} ({span(told.window_s)})\n")
    rows = [
        (
            row.name or "(none)",
            f"{row.slice_s / _HOUR_S:.3f}",
            f"{row.waiting_s / _HOUR_S:.3f}",
            str(row.holdings),
            str(row.waits),
        )
        for row in told.rows
    ]
    print_table((by.value.upper(), "SLICE-HOURS", "HOURS WAITED", "HOLDINGS", "WAITS"), rows)
    shares = utilisation(told) if by is _By.TYPE else {}
    for name, share in shares.items():
        print_line(f"\n{name}: {share:.1%} of {told.capacity[name]} slices were held")


def utilisation(told: pb.GetUsageResponse) -> dict[str, float]:
    """Returns what share of the slices was held, by instance type; of a usage by type only."""
    held = {row.name: row.slice_s for row in told.rows}
    if not told.window_s or not held.keys() <= told.capacity.keys():
        return {}
    return {
        name: held.get(name, 0.0) / (count * told.window_s) for name, count in told.capacity.items()
    }
