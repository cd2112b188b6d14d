"""What operators and owners ask of the resource manager: release, cordon, reserve."""

from __future__ import annotations

from collections.abc import Callable

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.scheduling.book import holdings, messages
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock

__all__ = ["OperatorRequests"]

#: Slices that an error names at most.
_NAMED = 20


class OperatorRequests:
    """Checks requests, and hands them to the core as events.

    Args:
      core: Answers what is known; it is changed by `handle` only.
      clock: The core's.
      handle: Hands an event to the core, and carries out its instructions.
      check_open: Raises StreamEnded if events are not taken any more.
    """

    def __init__(
        self,
        core: ResourceManagerCore,
        clock: SteadyClock,
        handle: Callable[[messages.ResourceManagerEvent], None],
        check_open: Callable[[str], None],
    ) -> None:
        self._core = core
        self._clock = clock
        self._handle = handle
        self._check_open = check_open

    def release(self, released: messages.TenantReleased) -> bool:
        """Takes a tenant's slices back; False when there is no such tenant.

        Raises:
          StreamEnded: This process is about to end, and they were not.
        """
        known = self._core.knows(released.tenant, released.incarnation)
        self._handle(released)
        self._check_open(f"{released.tenant} is not released")
        return known

    def mark(
        self, marked: messages.SliceCordoned | messages.SliceDrained | messages.SliceUncordoned
    ) -> holdings.SliceStatus:
        """Takes in what an operator says of a slice; returns how it stands then.

        Raises:
          InvalidRequestError: There is no such slice.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        if not self._core.knows_slice(marked.slice_id):
            known = ", ".join(self._core.slice_ids(limit=_NAMED)) or "none yet"
            raise InvalidRequestError("slice", marked.slice_id, f"one of {known}")
        self._handle(marked)
        self._check_open(f"{marked.slice_id} is as it was")
        return self._core.slice_status(marked.slice_id, self._clock())

    def reserve(self, asked: Reservation) -> None:
        """Takes in a reservation.

        Raises:
          InvalidRequestError: It cannot be.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        wrong = self._core.refusal_of(asked, self._clock())
        if wrong is not None:
            field, expected = wrong
            value = getattr(asked, field)
            raise InvalidRequestError(field, moment(value) if field == "ends" else value, expected)
        self._handle(messages.ReservationMade(reservation=asked))
        self._check_open("nothing is reserved")

    def cancel(self, cancelled: messages.ReservationCancelled) -> None:
        """Ends a reservation before its time.

        Raises:
          InvalidRequestError: There is no such reservation.
          StreamEnded: This process is about to end, and it was not taken in.
        """
        if not self._core.knows_reservation(cancelled.name):
            known = [one.reservation.name for one in self._core.reservations[:_NAMED]]
            raise InvalidRequestError(
                "name", cancelled.name, f"one of {', '.join(known) or 'none: nothing is reserved'}"
            )
        self._handle(cancelled)
        self._check_open(f"{cancelled.name} is as it was")
