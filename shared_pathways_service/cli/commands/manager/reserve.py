"""`sps reserve`, `sps reservations`, `sps unreserve`: manage reservations of slices."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from shared_pathways_service.api.instances import parse_instance_texts
from shared_pathways_service.cli.display.decision_lines import owner_of, reservation_line
from shared_pathways_service.cli.display.moments import parse_coming, shown
from shared_pathways_service.cli.display.output import AsJson, print_json, print_line, print_table
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place, takes_place
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.operations.service_readers.service_occupancy import reservation_dict
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings

__all__ = ["reservations", "reserve", "unreserve"]


@takes_place
def reserve(
    slices: Annotated[str, typer.Argument(metavar="TYPE=COUNT", help="Slices, e.g. tpuv6e:2x2=2.")],
    *,
    for_user: Annotated[str, typer.Option(help="Reserve them for the tenants of this user.")] = "",
    for_team: Annotated[str, typer.Option(help="Reserve them for the tenants of this team.")] = "",
    starts: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start after a time span (in 2h), or at a time. [default: now]",
        ),
    ] = None,
    until: Annotated[
        str,
        typer.Option(metavar="TIME", help="End after a time span from now (in 8h), or at a time."),
    ],
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Reserve slices of a type for a user or a team, for a period of time.

    From the start on only the owner is granted them; tenants that hold them at the start keep
    them. Before the start others are granted slices if enough remain, or if their max_lifetime=
    ends before it.
    """
    place.request()
    if bool(for_user) == bool(for_team):
        given = f"{for_user} and {for_team}" if for_user else ""
        raise InvalidRequestError("--for-user", given, "a user, or --for-team and a team")
    counts = parse_instance_texts([slices], field="TYPE=COUNT")
    if len(counts) != 1:
        raise InvalidRequestError(
            "TYPE=COUNT", slices, "one type; make another reservation for another type"
        )
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
    """List reservations: slices, owner, period, and how many slices are in use."""
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
        str, typer.Argument(metavar="ID", help="Id of the reservation, as in `sps reservations`.")
    ],
    *,
    as_json: AsJson = False,
    place: Place,
) -> None:
    """Cancel a reservation; tenants that hold slices by it keep them."""
    place.request()
    asyncio.run(_cancel(place, reservation))
    if as_json:
        print_json({"id": reservation, "cancelled": True})
    else:
        print_line(f"{reservation} is cancelled")


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
