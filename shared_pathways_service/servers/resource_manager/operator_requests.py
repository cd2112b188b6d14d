"""Handles requests of operators and owners: release, cordon, reserve."""

from __future__ import annotations

from collections.abc import Callable

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.scheduling.book import holdings, messages
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock

__all__ = ["OperatorRequests"]

#: The maximum number of slices that an error names.
_NAMED = 20


class OperatorRequests:
    """Validates requests, and passes them to the core as events.

    Args:
      core: Read for its state; changed through `handle` only.
      clock: The core's clock.
      handle: Passes an event to the core, and carries out its instructions.
      check_open: Raises StreamEnded if events are no longer accepted.
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
        """Releases a tenant's slices; returns False if there is no such tenant.

        Raises:
          StreamEnded: This process is about to end; the slices were not released.
        """
        known = self._core.knows(released.tenant, released.incarnation)
        self._handle(released)
        self._check_open(f"{released.tenant} is not released")
        return known

    def mark(
        self, marked: messages.SliceCordoned | messages.SliceDrained | messages.SliceUncordoned
    ) -> holdings.SliceStatus:
        """Applies an operator's mark to a slice; returns the slice's new status.

        Raises:
          InvalidRequestError: There is no such slice.
          StreamEnded: This process is about to end; the request was not carried out.
        """
        if not self._core.knows_slice(marked.slice_id):
            known = ", ".join(self._core.slice_ids(limit=_NAMED)) or "none yet"
            raise InvalidRequestError("slice", marked.slice_id, f"one of {known}")
        self._handle(marked)
        self._check_open(f"{marked.slice_id} is as it was")
        return self._core.slice_status(marked.slice_id, self._clock())

    def reserve(self, asked: Reservation) -> None:
        """Adds a reservation.

        Raises:
          InvalidRequestError: The reservation is not possible.
          StreamEnded: This process is about to end; the request was not carried out.
        """
        wrong = self._core.refusal_of(asked, self._clock())
        if wrong is not None:
            field, expected = wrong
            value = getattr(asked, field)
            raise InvalidRequestError(field, moment(value) if field == "ends" else value, expected)
        self._handle(messages.ReservationMade(reservation=asked))
        self._check_open("nothing is reserved")

    def cancel(self, cancelled: messages.ReservationCancelled) -> None:
        """Cancels a reservation.

        Raises:
          InvalidRequestError: There is no such reservation.
          StreamEnded: This process is about to end; the request was not carried out.
        """
        if not self._core.knows_reservation(cancelled.name):
            known = [one.reservation.name for one in self._core.reservations[:_NAMED]]
            raise InvalidRequestError(
                "name", cancelled.name, f"one of {', '.join(known) or 'none: nothing is reserved'}"
            )
        self._handle(cancelled)
        self._check_open(f"{cancelled.name} is as it was")
