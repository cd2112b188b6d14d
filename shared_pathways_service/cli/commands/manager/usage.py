"""`sps usage`: shows slice-hours held and hours waited."""

from __future__ import annotations

import asyncio
import csv
import enum
import io
from typing import Annotated, Any

import typer

from shared_pathways_service.cli.display.moments import parse_moment, shown
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.scheduling.book.decisions import span

__all__ = ["read_usage", "usage", "utilisation"]

#: Seconds for an answer: the server reads a long history in small pieces, between other work.
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
        print_json(_as_dict(answer, by))
    elif as_csv:
        print_line(_as_csv(answer, by))
    else:
        _print(answer, by)


async def _read(place: Place, by: _By, since: float, until: float) -> pb.GetUsageResponse:
    async with manager_of(place, Settings.load()) as manager:
        return await read_usage(manager, by, since, until)


async def read_usage(
    manager: Manager, by: str, since: float, until: float = 0.0
) -> pb.GetUsageResponse:
    """Requests the usage of a time window, in the form of `GetUsageRequest`."""
    request = pb.GetUsageRequest(by=by, since=since, until=until)
    return await manager.ask(manager.stub.GetUsage, request, timeout_s=_ANSWER_S)


def _rows(answer: pb.GetUsageResponse, by: _By) -> list[dict[str, Any]]:
    return [
        {
            by.value: row.name or None,
            "slice_seconds": round(row.slice_s, 3),
            "waiting_seconds": round(row.waiting_s, 3),
            "holdings": row.holdings,
            "waits": row.waits,
        }
        for row in answer.rows
    ]


def _as_dict(answer: pb.GetUsageResponse, by: _By) -> dict[str, Any]:
    return {
        "since": answer.since,
        "until": answer.until,
        "by": by.value,
        "capacity": dict(answer.capacity),
        "rows": _rows(answer, by),
    }


def _as_csv(answer: pb.GetUsageResponse, by: _By) -> str:
    text = io.StringIO()
    names = [by.value, "slice_seconds", "waiting_seconds", "holdings", "waits"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_rows(answer, by))
    return text.getvalue().removesuffix("\n")


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


def utilisation(answer: pb.GetUsageResponse) -> dict[str, float]:
    """Returns the share of held slices by instance type; empty if the usage is not by type."""
    held = {row.name: row.slice_s for row in answer.rows}
    if not answer.window_s or not held.keys() <= answer.capacity.keys():
        return {}
    return {
        name: held.get(name, 0.0) / (count * answer.window_s)
        for name, count in answer.capacity.items()
    }
