"""Cordons, drains and uncordons slices on behalf of operators.

No tenant is placed on a cordoned slice, and its holder keeps it. A drained slice is cordoned, and
its holder is moved to a free slice (or a spare), as after a loss but with a notice and a grace
period, during which that slice is reserved for it. If none is free, the holder is moved as soon as
one is, before any waiting tenant, unless it releases the slice earlier. Marks outlive workers and
restarts, until the slice is uncordoned.

A cordoned slice without a holder counts as one of the spares: a free slice stands in for it, so
tenants can have as many slices as before, and one spare fewer is withheld for losses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from shared_pathways_service.events import manager_events
from shared_pathways_service.scheduling.book.actions import Actions
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    SliceCordoned,
    SliceDrained,
    SliceUncordoned,
)
from shared_pathways_service.scheduling.book.records import NOTICE_DELIVERY_S, Pool, Slice
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.states import SliceMark, SliceState
from shared_pathways_service.scheduling.policies.policy import Policy

__all__ = ["Cordons"]

#: States of slices whose workers have all joined.
_IN = frozenset({SliceState.READY, SliceState.CORDONED, SliceState.DRAINING})
_MARK_EVENTS: Mapping[SliceMark, type[manager_events.PhysicalSliceEvent]] = {
    SliceMark.NONE: manager_events.SliceUncordoned,
    SliceMark.CORDONED: manager_events.SliceCordoned,
    SliceMark.DRAINING: manager_events.SliceDraining,
}
_MARKS = {
    SliceCordoned: SliceMark.CORDONED,
    SliceDrained: SliceMark.DRAINING,
    SliceUncordoned: SliceMark.NONE,
}


class Cordons(Policy):
    """Cordons, drains and uncordons slices, and moves the holders of drained ones."""

    def __init__(self, config: RmConfig, ledger: Ledger, deadlines: Deadlines) -> None:
        self._grace_s = config.preemption_grace_s
        self._ledger = ledger
        self._deadlines = deadlines

    @property
    def events(self) -> Mapping[type, Callable[[Any], Actions]]:
        """Operators' requests to cordon, drain or uncordon a slice."""
        return dict.fromkeys(_MARKS, self._marked)

    def serve_first(self, pool: Pool) -> Actions:
        """Moves holders of drained slices to free ones."""
        return self._move_holders(pool) if pool.drains else ()

    def _move_holders(self, pool: Pool) -> Actions:
        while pool.free and pool.drains:
            drained = next(iter(pool.drains))
            ends_at = self._ends_at(drained)
            yield ScheduleMove(drained, ends_at)
            self._await(drained, ends_at)
        for drained in list(pool.drains):
            if drained.moves_at is not None:
                yield WithdrawMove(drained)

    def _marked(self, event: SliceCordoned | SliceDrained | SliceUncordoned) -> Actions:
        """Marks a slice.

        Raises:
          ValueError: There is no such slice.
        """
        found = self._ledger.slices.get(event.slice_id)
        if found is None:
            raise ValueError(f"slice_id={event.slice_id!r}: no such slice")
        if found.mark is not (mark := _MARKS[type(event)]):
            yield MarkSlice(found, mark)

    def _ends_at(self, drained: Slice) -> float:
        """Returns when the holder of a drained slice is moved, if that begins now."""
        now = self._ledger.now
        if drained.moves_at is None:
            return now + self._grace_s
        # After a restart, or when the first choice was lost: no sooner than announced, if the
        # holder was notified.
        return max(drained.moves_at, now + min(self._grace_s, NOTICE_DELIVERY_S))

    def _await(self, drained: Slice, ends_at: float) -> None:
        onto = drained.onto
        self._deadlines.add(
            lambda: ends_at if drained.onto is onto and drained.moves_at == ends_at else None,
            lambda: iter((MoveHolder(drained),)),
        )


# ---- actions


@dataclasses.dataclass(eq=False, slots=True)
class MarkSlice:
    """Sets an operator's mark on a slice, and withdraws a move that is no longer wanted."""

    about: Slice
    mark: SliceMark

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Marks the slice."""
        found, mark = self.about, self.mark
        ledger.set_mark(found, mark)
        if mark is not SliceMark.DRAINING:
            found.pool.drains.pop(found, None)
            if found.onto is not None:
                ledger.set_state(found, found.state_when_complete)
                ledger.keep_no_more(found.onto)
            if found.moves_at is not None:
                WithdrawMove(found).apply(ledger, speaker)
        if found.state in _IN:
            ledger.enter(found)
        speaker.announce(
            partial(
                _MARK_EVENTS[mark],
                tenant=found.tenant.name if found.tenant else None,
                slice=found.id,
                instance_type=found.pool.name,
                state=str(found.state),
            )
        )


@dataclasses.dataclass(eq=False, slots=True)
class ScheduleMove:
    """Reserves a free slice for the holder of a drained one, and notifies the holder.

    Attributes:
      ends_at: When the holder is moved.
    """

    drained: Slice
    ends_at: float

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Reserves the slice."""
        drained = self.drained
        assert drained.tenant is not None
        del drained.pool.drains[drained]
        ledger.keep(ledger.take_free(drained.pool, drained.tenant), drained)
        if self.ends_at != drained.moves_at:
            ledger.set_moves_at(drained, self.ends_at)
        speaker.moving(drained)


@dataclasses.dataclass(eq=False, slots=True)
class WithdrawMove:
    """Withdraws the notice that the holder of a slice will be moved."""

    drained: Slice

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Clears the time of the move, and notifies the holder."""
        ledger.set_moves_at(self.drained, None)
        if self.drained.tenant is not None:
            speaker.moving(self.drained)


@dataclasses.dataclass(eq=False, slots=True)
class MoveHolder:
    """Moves the holder of a drained slice to the one reserved for it."""

    drained: Slice

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Takes the one slice away and places the other."""
        drained = self.drained
        tenant, index, onto = drained.tenant, drained.index, drained.onto
        assert tenant is not None
        assert onto is not None
        generation = drained.generation
        reason = f"{drained.id} is drained by an operator"
        # This cordons the slice, and frees the other one.
        ledger.let_go(drained, reason=reason)
        speaker.unplaced(tenant, index, drained.id, generation, reason)
        tenant.lost.add(index)
        ledger.place(tenant, index, onto)
        speaker.placed(tenant, index, onto)
