"""`sps reserve`, `sps reservations`, `sps unreserve`: slices kept for somebody, for a while."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.cli.display.moments import parse_coming, shown
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.display.status_messages import (
    owner_of,
    reservation_dict,
    reservation_line,
)
from shared_pathways_service.cli.lookups.manager_calls import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["reservations", "reserve", "unreserve"]


@takes_place
def reserve(
    slices: Annotated[str, typer.Argument(metavar="TYPE=COUNT", help="E.g. tpuv6e:2x2=2.")],
    *,
    for_user: Annotated[str, typer.Option(help="Whose tenants they are for.")] = "",
    for_team: Annotated[str, typer.Option(help="Or which team's.")] = "",
    starts: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="TIME", help="Start: a span (in 2h), or a time; without it, now."
        ),
    ] = None,
    until: Annotated[
        str, typer.Option(metavar="TIME", help="End: a span from now (in 8h), or a time.")
    ],
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Keep slices of a type for a user or a team, from one moment until another.

    From the start on they come to nobody else; who holds them then keeps them. Before the start
    others have them if enough remain, or if their max_lifetime= is over by then.
    """
    place.request()
    if bool(for_user) == bool(for_team):
        given = f"{for_user} and {for_team}" if for_user else ""
        raise InvalidRequestError("--for-user", given, "a user, or --for-team and a team")
    counts = parse_instance_texts([slices], field="TYPE=COUNT")
    if len(counts) != 1:
        raise InvalidRequestError("TYPE=COUNT", slices, "one type; another is a reservation more")
    [(instance_type, count)] = counts.items()
    request = pb.ReserveSlicesRequest(
        instance_type=instance_type,
        count=count,
        user=for_user,
        team=for_team,
        starts=0.0 if starts is None else parse_coming("--from", starts),
        ends=parse_coming("--until", until),
    )
    made = reservation_dict(asyncio.run(_reserve(place, request)))
    if as_json:
        print_json(made)
    else:
        print_line(reservation_line(made))


@takes_place
def reservations(*, as_json: AsJson = False, place: Place) -> None:
    """List what is reserved: slices, for whom, from when until when, how many are in use."""
    place.request()
    found = asyncio.run(_list(place))
    if as_json:
        print_json(found)
        return
    print_table(
        ("RESERVATION", "TYPE", "SLICES", "IN USE", "FOR", "FROM", "UNTIL"),
        [
            (
                one["id"],
                one["instance_type"],
                str(one["count"]),
                str(one["held"]),
                owner_of(one),
                shown(one["starts"]),
                shown(one["ends"]),
            )
            for one in found
        ],
    )


@takes_place
def unreserve(
    reservation: Annotated[
        str, typer.Argument(metavar="ID", help="As `sps reservations` names it.")
    ],
    *,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """End a reservation before its time; who holds slices by it keeps them."""
    place.request()
    asyncio.run(_cancel(place, reservation))
    if as_json:
        print_json({"id": reservation, "cancelled": True})
    else:
        print_line(f"{reservation} is no more")


async def _reserve(place: Place, request: pb.ReserveSlicesRequest) -> pb.ReservationStatus:
    async with manager_of(place, Settings.load()) as manager:
        return (await manager.ask(manager.stub.ReserveSlices, request)).reservation


async def _list(place: Place) -> list[dict[str, Any]]:
    async with manager_of(place, Settings.load()) as manager:
        return [reservation_dict(one) for one in (await manager.status()).reservations]


async def _cancel(place: Place, name: str) -> None:
    request = pb.CancelReservationRequest(name=name)
    async with manager_of(place, Settings.load()) as manager:
        await manager.ask(manager.stub.CancelReservation, request)
