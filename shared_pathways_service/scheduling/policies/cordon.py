"""What operators say of slices: cordon, drain, uncordon.

Nobody new comes to a slice that is cordoned, and who holds it keeps it. A slice that is drained is
cordoned, and its holder is moved to a free slice (a spare, too), as after a loss but with a notice
and a grace: that slice is kept for it meanwhile. Where none is free, it is moved as soon as one
is, before anybody who waits, unless it lets go earlier. What was said outlives workers and
restarts, until the slice is uncordoned.

A cordoned slice without a holder counts as one of the spares: a free slice stands in for it, so
tenants can have as many slices as before, and one spare less is kept back for losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from shared_pathways_service.events import manager_events
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    SliceCordoned,
    SliceDrained,
    SliceUncordoned,
)
from shared_pathways_service.scheduling.book.records import HEARD_S, Slice
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.states import SliceMark, SliceState
from shared_pathways_service.scheduling.policies.placement_order import Scheduler

__all__ = ["Cordons"]

_IN = frozenset({SliceState.READY, SliceState.CORDONED, SliceState.DRAINING})
_MARK_EVENTS: Mapping[SliceMark, type[manager_events.PhysicalSliceEvent]] = {
    SliceMark.NONE: manager_events.SliceUncordoned,
    SliceMark.CORDONED: manager_events.SliceCordoned,
    SliceMark.DRAINING: manager_events.SliceDraining,
}


class Cordons:
    """Slices are cordoned and drained, and come back."""

    def __init__(
        self,
        config: RmConfig,
        ledger: Ledger,
        speaker: Speaker,
        deadlines: Deadlines,
        scheduler: Scheduler,
    ) -> None:
        self._grace_s = config.preemption_grace_s
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._scheduler = scheduler
        scheduler.move = self._begin_move
        scheduler.stay = self._stay

    def marked(self, event: SliceCordoned | SliceDrained | SliceUncordoned) -> None:
        """Takes in what an operator says of a slice.

        Raises:
          ValueError: There is no such slice.
        """
        marks = {
            SliceCordoned: SliceMark.CORDONED,
            SliceDrained: SliceMark.DRAINING,
            SliceUncordoned: SliceMark.NONE,
        }
        found = self._ledger.slices.get(event.slice_id)
        if found is None:
            raise ValueError(f"slice_id={event.slice_id!r}: no such slice")
        if found.mark is (mark := marks[type(event)]):
            return
        self._ledger.set_mark(found, mark)
        if mark is not SliceMark.DRAINING:
            self._end_move(found)
        if found.state in _IN:
            self._ledger.enter(found)
        self._speaker.announce(
            partial(
                _MARK_EVENTS[mark],
                tenant=found.tenant.name if found.tenant else None,
                slice=found.id,
                instance_type=found.pool.name,
                state=str(found.state),
            )
        )

    # ---- moves

    def _begin_move(self, drained: Slice) -> None:
        """Keeps a free slice for the holder of one that is drained."""
        del drained.pool.drains[drained]
        self._ledger.keep(self._ledger.take_free(drained.pool), drained)
        now = self._ledger.now
        ends_at = now + self._grace_s
        if drained.moves_at is not None:
            # After a restart, or when the first choice was lost: no sooner than it was told, if it
            # heard that.
            ends_at = max(drained.moves_at, now + min(self._grace_s, HEARD_S))
        if ends_at != drained.moves_at:
            self._ledger.set_moves_at(drained, ends_at)
        onto = drained.onto
        self._speaker.moving(drained)
        self._deadlines.add(
            lambda: ends_at if drained.onto is onto and drained.moves_at == ends_at else None,
            lambda: self._move(drained),
        )

    def _move(self, drained: Slice) -> None:
        tenant, index, onto = drained.tenant, drained.index, drained.onto
        assert tenant is not None
        assert onto is not None
        generation = drained.generation
        reason = f"{drained.id} is drained by an operator"
        # The slice is cordoned by that, and the other one free.
        self._ledger.let_go(drained, reason=reason)
        self._speaker.unplaced(tenant, index, drained.id, generation, reason)
        tenant.lost.add(index)
        self._ledger.place(tenant, index, onto)
        self._speaker.placed(tenant, index, onto)

    def _end_move(self, found: Slice) -> None:
        found.pool.drains.pop(found, None)
        if found.onto is not None:
            self._ledger.set_state(found, found.state_when_complete)
            self._ledger.keep_no_more(found.onto)
        if found.moves_at is not None:
            self._stay(found)

    def _stay(self, drained: Slice) -> None:
        """Ends the notice of a move; should there be one again, it has a grace of its own."""
        self._ledger.set_moves_at(drained, None)
        if drained.tenant is not None:
            self._speaker.moving(drained)
