"""The calls by which operators reserve slices and cancel reservations."""

from __future__ import annotations

import secrets

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_int, check_text
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.holdings import ReservationStatus
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.call_errors import Context, refusing
from shared_pathways_service.servers.resource_manager.status_report import reservation_message

__all__ = ["ReservationCalls"]

#: Seconds since the epoch, in the year 9999: later than any real time.
_LAST_MOMENT = 253_402_300_000.0


class ReservationCalls:
    """The reservation methods of the service."""

    _authority: Authority

    @refusing
    async def ReserveSlices(  # noqa: N802
        self, request: pb.ReserveSlicesRequest, _context: Context
    ) -> pb.ReserveSlicesResponse:
        """Reserves slices for a user or a team, for a period."""
        asked = _asked(request, self._authority.now)
        self._authority.operators.reserve(asked)
        made = ReservationStatus(reservation=asked, held=0)
        for one in self._authority.reservations:
            if one.reservation.name == asked.name:
                made = one
        return pb.ReserveSlicesResponse(reservation=reservation_message(made))

    @refusing
    async def CancelReservation(  # noqa: N802
        self, request: pb.CancelReservationRequest, _context: Context
    ) -> pb.CancelReservationResponse:
        """Cancels a reservation."""
        name = check_text("name", request.name)
        self._authority.operators.cancel(messages.ReservationCancelled(name=name))
        return pb.CancelReservationResponse()


def _asked(request: pb.ReserveSlicesRequest, now: float) -> Reservation:
    """Creates the reservation of a request, with a new name.

    Raises:
      InvalidRequestError: Naming the field.
    """
    user, team = check_text("user", request.user), check_text("team", request.team)
    if bool(user) == bool(team):
        raise InvalidRequestError("user", user, "either a user or a team")
    return Reservation(
        name=f"res-{secrets.token_hex(4)}",
        instance_type=str(InstanceType.parse(request.instance_type)),
        count=check_int("count", request.count, low=1),
        user=user,
        team=team,
        starts=max(now, _moment("starts", request.starts, now)),
        ends=_moment("ends", request.ends, now),
    )


def _moment(field: str, given: float, now: float) -> float:
    moment = now - given if given <= 0 else given
    if not 0 <= moment <= _LAST_MOMENT:
        raise InvalidRequestError(field, given, "seconds since the epoch, or negative: from now")
    return moment
