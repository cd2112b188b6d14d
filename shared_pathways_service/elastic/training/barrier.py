"""A point that all slices must reach in time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.waiting import Waiters
from shared_pathways_service.errors import SliceLost
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import BarrierSlow

__all__ = ["Barrier"]

T = TypeVar("T")


class Barrier:
    """Waits for what slices compute; if that takes too long, asks whether they are still there.

    A step that takes long on slices that answer is waited for: it is no hang. Devices that work in
    order answer no probe before the step has ended; so where no slice at all answers they count as
    busy, for a longer while. One that answers with an error is lost at once.

    Args:
      timeout: Seconds until the slices are asked, and asked again.
      busy_timeout: Seconds that all slices may be silent together.
      watch: Asks them.
      emit: Is told when they are.
    """

    def __init__(
        self,
        timeout: float,
        busy_timeout: float,
        watch: SliceWatch,
        emit: Callable[[Event], None],
    ) -> None:
        self._timeout = timeout
        self._busy_timeout = busy_timeout
        self._watch = watch
        self._emit = emit
        self._waiters = Waiters("sps-elastic-barrier")

    def pass_with(
        self, wait: Callable[[], T], slices: Sequence[int], what: str = "a step", looks: int = 1
    ) -> T:
        """Waits for what slices compute.

        Args:
          wait: Waits for it, however long that takes; called on another thread.
          slices: Which slices do.
          what: What they do, for messages.
          looks: How often in a row a slice must be silent, while another answers, to be lost. More
            than once where they do not all do the same, and some are done before others.

        Returns:
          What `wait` returned.

        Raises:
          SliceLost: A slice does not answer; `slices` names it.
          Exception: What `wait` raised.
        """
        began = heard = time.monotonic()
        partly_silent = 0
        outcome = self._waiters.call("wait", wait)
        while not outcome.wait(self._timeout):
            answers = self._watch.look(slices)
            if outcome.wait(0):
                break  # meanwhile: what was asked may have waited for just that
            now = time.monotonic()
            if answers.good:
                heard = now
                partly_silent = partly_silent + 1 if answers.silent else 0
            hung = partly_silent >= looks if answers.good else now - heard >= self._busy_timeout
            lost = {i: why for i, why in answers.bad.items() if hung or i not in answers.silent}
            if lost:
                silent = tuple(i for i in answers.silent if i in lost)
                self._watch.note(dataclasses.replace(answers, bad=lost, silent=silent))
                raise SliceLost(
                    f"{what} did not end within {now - began:.3g} s: "
                    + "; ".join(f"slice {i}: {why}" for i, why in lost.items()),
                    slices=tuple(lost),
                    reason=next(iter(lost.values())),
                )
            how = "no slice answers, as all are busy with it"
            if answers.good:
                how = "some slices are busy with it" if answers.silent else "all slices answer"
            self._emit(
                BarrierSlow(
                    duration_s=now - began,
                    reason=f"{what} takes longer than that; {how}",
                )
            )
        value: T = outcome.result()
        return value

    def close(self) -> None:
        """Ends its thread; one that hangs ends with what it waits for."""
        self._waiters.close()
