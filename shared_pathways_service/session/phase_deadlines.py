"""Computes the deadlines of a session's phases, which exclude the time in the queue."""

from __future__ import annotations

from collections.abc import Callable

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.patience import timeouts
from shared_pathways_service.session.messages import ENDING, RISING, Phase

__all__ = ["QUEUE_SLACK_S", "UNDO_S", "Deadlines"]

#: Seconds that an unwanted create may take to answer before it is cancelled: after an answer, the
#: deletion certainly follows the creation.
UNDO_S = timeouts.CREATE_UNDO.seconds
#: Seconds beyond queue_timeout for the resource manager's own refusal, which has more details.
QUEUE_SLACK_S = timeouts.QUEUE_REFUSAL.seconds


class Deadlines:
    """The deadlines of one session; times are seconds of the session's clock.

    Args:
      request: Its timeouts.
      now: The time.
      delete_timeout_s: Seconds for the deletion.
      patience: Returns the factor of the waits that the user has not limited.
    """

    def __init__(
        self,
        request: SessionRequest,
        now: float,
        delete_timeout_s: float,
        patience: Callable[[], float],
    ) -> None:
        self._patience = patience
        self._timeout_s = request.timeout_s
        self._ready_by = now + request.timeout_s
        self._place_by = self._ready_by
        self._queue_by: float | None = None
        queue_timeout_s = request.tenant.queue_timeout_s
        self._queue_left_s = None if queue_timeout_s is None else queue_timeout_s + self._slack_s()
        self._end_by = 0.0
        self.deletion_s = delete_timeout_s

    @property
    def limits_queue(self) -> bool:
        """Whether the session is queued with a finite timeout."""
        return self._queue_by is not None

    def of(self, phase: Phase) -> float | None:
        """Returns the deadline of a phase, if it is the present one; None: no deadline."""
        if phase in (Phase.UNDO, Phase.DELETE):
            return self._end_by
        if self._queue_by is not None and phase not in ENDING:
            return self._queue_by
        if phase is Phase.PLACE:
            return self._place_by
        return self._ready_by if phase in RISING else None

    def start_placement(self, now: float) -> None:
        """Starts the time for placement."""
        self._place_by = now + self._timeout_s

    def follow_queue(self, now: float, *, is_queued: bool) -> None:
        """Records whether the session is queued now; time in the queue extends other deadlines.

        A session that is queued again continues its queue time.
        """
        if is_queued and self._queue_by is None and self._queue_left_s is not None:
            self._queue_by = now + self._queue_left_s
        elif not is_queued and self._queue_by is not None:
            self._queue_left_s = max(0.0, self._queue_by - now)
            self._queue_by = None
            self._ready_by = max(self._ready_by, now + self._timeout_s)
            self._place_by = max(self._place_by, now + self._timeout_s)

    def extend_queue(self, now: float) -> None:
        """Extends the time in the queue, so that news of a placement can arrive first."""
        if self._queue_by is not None:
            self._queue_by = max(self._queue_by, now + self._slack_s())

    def start_undo(self, now: float) -> None:
        """Starts the time for the answer of an unwanted create."""
        self._end_by = now + UNDO_S * self._patience()

    def start_deletion(self, now: float) -> None:
        """Starts the time for the deletion."""
        self._end_by = now + self.deletion_s

    def extend_deletion(self, seconds: float, phase: Phase) -> None:
        """Extends the time for the deletion, which may be the present phase, to at least this."""
        longer = max(self.deletion_s, seconds)
        if phase is Phase.DELETE:
            self._end_by += longer - self.deletion_s
        self.deletion_s = longer

    def _slack_s(self) -> float:
        return QUEUE_SLACK_S * self._patience()
