"""When each phase of a session must have ended, the time in the queue left out."""

from __future__ import annotations

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.session.messages import Phase
from shared_pathways_service.session.phases import ENDING, RISING

__all__ = ["QUEUE_SLACK_S", "UNDO_S", "Deadlines"]

#: Seconds that a create which is no longer wanted may take to answer before it is broken off: an
#: answer makes the deletion certain to come after it.
UNDO_S = 2.0
#: Seconds beyond queue_timeout that the resource manager has for its own refusal, which says more.
QUEUE_SLACK_S = 5.0


class Deadlines:
    """The deadlines of one session; times are seconds of the session's clock.

    Args:
      request: The session's; it has the timeouts.
      now: The time.
      delete_timeout_s: Seconds for the deletion, while somebody waits for it.

    Attributes:
      deletion_s: Seconds that the deletion may take.
    """

    def __init__(self, request: SessionRequest, now: float, delete_timeout_s: float) -> None:
        self._timeout_s = request.timeout_s
        self._ready_by = now + request.timeout_s
        self._place_by = self._ready_by
        self._queue_by: float | None = None
        queue_timeout_s = request.tenant.queue_timeout_s
        self._queue_left_s = None if queue_timeout_s is None else queue_timeout_s + QUEUE_SLACK_S
        self._end_by = 0.0
        self.deletion_s = delete_timeout_s

    @property
    def limits_queue(self) -> bool:
        """Whether the session is in a queue that it may not be in for ever."""
        return self._queue_by is not None

    def of(self, phase: Phase) -> float | None:
        """Returns when a phase must have ended, if it is the present one; None: never."""
        if phase in (Phase.UNDO, Phase.DELETE):
            return self._end_by
        if self._queue_by is not None and phase not in ENDING:
            return self._queue_by
        if phase is Phase.PLACE:
            return self._place_by
        return self._ready_by if phase in RISING else None

    def start_placement(self, now: float) -> None:
        """The slices are waited for from now on."""
        self._place_by = now + self._timeout_s

    def follow_queue(self, now: float, *, is_queued: bool) -> None:
        """Takes whether the session is in the queue now: the time there counts for nothing else.

        A session that is queued again continues the same queue time.
        """
        if is_queued and self._queue_by is None and self._queue_left_s is not None:
            self._queue_by = now + self._queue_left_s
        elif not is_queued and self._queue_by is not None:
            self._queue_left_s = max(0.0, self._queue_by - now)
            self._queue_by = None
            self._ready_by = max(self._ready_by, now + self._timeout_s)
            self._place_by = max(self._place_by, now + self._timeout_s)

    def start_undo(self, now: float) -> None:
        """A create that is no longer wanted may answer first."""
        self._end_by = now + UNDO_S

    def start_deletion(self, now: float) -> None:
        """The proxy is deleted from now on."""
        self._end_by = now + self.deletion_s

    def extend_deletion(self, seconds: float, phase: Phase) -> None:
        """Lets the deletion, which may be the present phase, take so long at least."""
        longer = max(self.deletion_s, seconds)
        if phase is Phase.DELETE:
            self._end_by += longer - self.deletion_s
        self.deletion_s = longer
