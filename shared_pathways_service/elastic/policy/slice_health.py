"""Tracks the health of slices for elastic training, and decides which ones it may use."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from shared_pathways_service.elastic.policy.options import Options

__all__ = ["Health", "SliceState", "Transition"]


class SliceState(enum.StrEnum):
    """The state of a slice."""

    #: It answers, and training may use it.
    ACTIVE = "active"
    #: Something failed on it; it has not been probed yet.
    SUSPECT = "suspect"
    #: It does not answer, because its executors start; it is waited for.
    AWAITED = "awaited"
    #: It did not answer correctly.
    DOWN = "down"
    #: It answers again, and training does not use it yet.
    RETURNING = "returning"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Transition:
    """A change of a slice's state, which may be excluded for some seconds although it answers."""

    slice: int
    state: SliceState
    reason: str
    left_out_s: float = 0.0


@dataclasses.dataclass
class _Slice:
    state: SliceState = SliceState.ACTIVE
    #: When it went down recently, oldest first.
    losses: list[float] = dataclasses.field(default_factory=list)
    #: Excluded until this time.
    left_out_until: float = 0.0
    #: Whether its last loss is counted, and may be reported again: by an error of the attempt that
    #: it ended, or because its replacement does not answer in time.
    is_counted: bool = False


class Health:
    """The state of each slice. Not thread-safe; the caller passes the time, in seconds."""

    def __init__(self, slices: Iterable[int], options: Options) -> None:
        self._options = options
        self._slices = {index: _Slice() for index in sorted(slices)}

    @property
    def states(self) -> dict[int, SliceState]:
        """The state of each slice."""
        return {index: known.state for index, known in self._slices.items()}

    def in_state(self, *states: SliceState) -> tuple[int, ...]:
        """Returns the slices in one of these states."""
        return tuple(i for i, known in self._slices.items() if known.state in states)

    def usable(self, now: float, least: int = 0) -> tuple[int, ...]:
        """Returns the slices that training may use.

        If fewer than `least` slices are healthy and not excluded, those whose exclusion
        ends first are included: flapping slices are better than none.
        """
        well = self.in_state(SliceState.ACTIVE, SliceState.RETURNING)
        calm = [i for i in well if self._slices[i].left_out_until <= now]
        left_out = sorted(set(well) - set(calm), key=lambda i: self._slices[i].left_out_until)
        return tuple(sorted([*calm, *left_out[: max(0, least - len(calm))]]))

    def suspect(self, indices: Iterable[int], reason: str) -> list[Transition]:
        """Records a failure that these slices may have caused."""
        moved = [i for i in indices if self._slices[i].state is SliceState.ACTIVE]
        return [self._move(i, SliceState.SUSPECT, reason) for i in moved]

    def good(self, index: int) -> list[Transition]:
        """Records that a slice answered correctly."""
        state = self._slices[index].state
        if state is SliceState.SUSPECT:
            return [self._move(index, SliceState.ACTIVE, "it answers")]
        if state is SliceState.AWAITED:
            return [self._move(index, SliceState.ACTIVE, "its executors serve")]
        if state is SliceState.DOWN:
            return [self._move(index, SliceState.RETURNING, "it answers again")]
        return []

    def starting(self, index: int, reason: str) -> list[Transition]:
        """Records that a slice does not answer because its executors start, which is no loss."""
        known = self._slices[index]
        if known.state in {SliceState.AWAITED, SliceState.DOWN}:
            return []
        known.is_counted = False
        return [self._move(index, SliceState.AWAITED, reason)]

    def bad(self, index: int, now: float, reason: str) -> list[Transition]:
        """Records that a slice did not answer correctly."""
        known = self._slices[index]
        if known.state is SliceState.DOWN:
            return []
        is_same = known.state is SliceState.AWAITED and known.is_counted
        left_out_s = 0.0 if is_same else self._count_loss(known, now)
        return [self._move(index, SliceState.DOWN, reason, left_out_s)]

    def lost(self, index: int, now: float) -> list[Transition]:
        """Records that a slice was lost and replaced at once: it answers, but went down.

        A loss counts once, also if a probe saw it, or it is reported again before training begins
        on the slice.
        """
        known = self._slices[index]
        if known.is_counted:
            return []
        left_out_s = self._count_loss(known, now)
        reason = "it was lost and replaced"
        return [self._move(index, known.state, reason, left_out_s)] if left_out_s else []

    def join(self, indices: Sequence[int]) -> list[Transition]:
        """Records that training begins on these slices."""
        for index in indices:
            self._slices[index].is_counted = False
        back = [i for i in indices if self._slices[i].state is SliceState.RETURNING]
        return [self._move(i, SliceState.ACTIVE, "training uses it again") for i in back]

    def _move(
        self, index: int, state: SliceState, reason: str, left_out_s: float = 0.0
    ) -> Transition:
        self._slices[index].state = state
        return Transition(slice=index, state=state, reason=reason, left_out_s=left_out_s)

    def _count_loss(self, known: _Slice, now: float) -> float:
        """Records a loss; returns for how long the slice is excluded."""
        options = self._options
        begin = now - options.flap_window_seconds
        known.losses = [*(t for t in known.losses if t > begin), now]
        known.is_counted = True
        over = len(known.losses) - options.flap_limit
        if over < 0:
            return 0.0
        longest = options.flap_backoff_most_seconds
        left_out = min(options.flap_backoff_seconds * 2.0 ** min(over, 30), longest)
        known.left_out_until = now + left_out
        return left_out
