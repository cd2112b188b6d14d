"""`sps usage`: shows slice-hours held and hours waited."""

from __future__ import annotations

import asyncio
import enum
from typing import Annotated

import typer

from shared_pathways_service.cli.display.moments import parse_moment, shown
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.usage import (
    read_usage,
    usage_as_csv,
    usage_as_dict,
    utilisation,
)
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span

__all__ = ["usage"]

_HOUR_S = 3600.0


class _By(enum.StrEnum):
    TENANT = "tenant"
    USER = "user"
    TEAM = "team"
    TYPE = "type"


@takes_place
def usage(
    *,
    by: Annotated[
        _By, typer.Option(help="Show one row per user, tenant, team or type.")
    ] = _By.USER,
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Start so long ago (7d, 1h), or at a time.")
    ] = "7d",
    until: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="End so long ago, or at a time. [default: now]"),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    place: Place,
) -> None:
    """Show slice-hours held and hours waited, by user, tenant, team or type.

    Two slices held for an hour are two slice-hours. Current holdings and waits count up to now.
    """
    place.request()
    if as_json and as_csv:
        raise InvalidRequestError("--csv", "with --json", "either --csv or --json")
    window = parse_moment("--since", since), parse_moment("--until", until)
    answer = asyncio.run(_read(place, by, *window))
    if as_json:
        print_json(usage_as_dict(answer, by.value))
    elif as_csv:
        print_line(usage_as_csv(answer, by.value))
    else:
        _print(answer, by)


async def _read(place: Place, by: _By, since: float, until: float) -> pb.GetUsageResponse:
    async with manager_of(place, Settings.load()) as manager:
        return await read_usage(manager, by, since, until)


def _print(answer: pb.GetUsageResponse, by: _By) -> None:
    print_line(f"from {shown(answer.since)} to {shown(answer.until)} ({span(answer.window_s)})\n")
    rows = [
        (
            row.name or "(none)",
            f"{row.slice_s / _HOUR_S:.3f}",
            f"{row.waiting_s / _HOUR_S:.3f}",
            str(row.holdings),
            str(row.waits),
        )
        for row in answer.rows
    ]
    print_table((by.value.upper(), "SLICE-HOURS", "HOURS WAITED", "HOLDINGS", "WAITS"), rows)
    shares = utilisation(answer) if by is _By.TYPE else {}
    for name, share in shares.items():
        print_line(f"\n{name}: {share:.1%} of {answer.capacity[name]} slices were held")
