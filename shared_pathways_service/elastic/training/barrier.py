"""A barrier that all slices must reach in time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax

from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.health.starts import start_text
from shared_pathways_service.elastic.waiting import Waiters
from shared_pathways_service.errors import SliceLost
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import BarrierSlow

__all__ = ["Barrier", "as_on_this_thread"]

T = TypeVar("T")


class Barrier:
    """Waits for the results of slices; after `timeout` seconds, probes the slices periodically.

    A long step on slices that answer is not a hang. Devices that work in order do not answer probes
    before the step has ended; so if no slice answers, all count as busy, for `busy_timeout`
    seconds. A slice that answers with an error is lost at once.
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
        """Waits for the results of slices.

        Args:
          wait: Waits for them, without a limit; called on another thread.
          slices: The slices.
          what: A description of their work, for messages.
          looks: The number of consecutive silent probes, while another slice answers, after which a
            slice is lost. More than one if slices do different work, and some finish before others.

        Returns:
          The result of `wait`.

        Raises:
          SliceLost: A slice does not answer; `slices` names it.
          Exception: An error of `wait`.
        """
        began = answered_at = time.monotonic()
        partly_silent = 0
        outcome = self._waiters.call("wait", wait)
        while not outcome.wait(self._timeout):
            answers = self._watch.look(slices)
            if outcome.wait(0):
                break  # meanwhile: the probes may have waited for this
            now = time.monotonic()
            if answers.good:
                answered_at = now
                partly_silent = partly_silent + 1 if answers.silent else 0
            hung = (
                partly_silent >= looks if answers.good else now - answered_at >= self._busy_timeout
            )
            bad = {i: why for i, why in answers.bad.items() if hung or i not in answers.silent}
            lost = bad | dict.fromkeys(answers.replaced, "it was lost, and its replacement starts")
            if lost:
                silent = tuple(i for i in answers.silent if i in bad)
                self._watch.note(dataclasses.replace(answers, bad=bad, silent=silent))
                self._watch.note_losses(answers.replaced)
                raise SliceLost(
                    f"{what} did not end within {now - began:.3g} s: "
                    + "; ".join(f"slice {i}: {why}" for i, why in lost.items()),
                    slices=tuple(lost),
                    reason=next(iter(lost.values())),
                )
            how = "no slice answers, as all are busy with it"
            if answers.starting:
                how = start_text(answers.starting)
            elif answers.good:
                how = "some slices are busy with it" if answers.silent else "all slices answer"
            reason = f"{what} takes longer than that; {how}"
            self._emit(BarrierSlow(duration_s=now - began, reason=reason))
        value: T = outcome.result()
        return value

    def close(self) -> None:
        """Ends its thread; a hanging thread ends with the call that it makes."""
        self._waiters.close()


def as_on_this_thread(call: Callable[[], T], device: jax.Device) -> Callable[[], T]:
    """Returns a function that makes a call on another thread, with this thread's settings of JAX.

    JAX has settings that are of a thread alone.
    """
    x64 = bool(jax.config.read("jax_enable_x64"))

    def as_here() -> T:
        with jax.default_device(device), jax.enable_x64(x64):
            return call()

    return as_here
