"""Restores the newest available state at the start of an attempt."""

from __future__ import annotations

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

import jax

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.snapshots.slots import Snapshots
from shared_pathways_service.elastic.trees import Placement, Tree, describe, place
from shared_pathways_service.elastic.waiting import Waiters
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import StateRestored
from shared_pathways_service.patience import timeouts

__all__ = ["States"]


T = TypeVar("T")
#: Makes a call that may wait for slices; raises `SliceLost` if one does not answer.
Within = Callable[[Callable[[], T]], T]
#: The type of functions with `functools.lru_cache`.
_CACHED: Final = type(functools.lru_cache(lambda: None))
_ORBAX_ARRAYS: Final = "orbax.checkpoint._src.serialization."


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Live:
    """A state at a step's end, still on the slices of training."""

    state: Tree
    progress: Progress
    slices: frozenset[int]


class States:
    """All states of a run that training can be rewound to: live, in memory, and on disk.

    It begins with the checkpoint of step `resume_from`; None: with the newest state.
    """

    def __init__(
        self,
        checkpoints: Checkpoints | None,
        snapshots: Snapshots | None,
        resume_from: int | None,
        emit: Callable[[Event], None],
    ) -> None:
        self.checkpoints = checkpoints
        self.snapshots = snapshots
        self._resume_from = resume_from
        self._emit = emit
        self._live: _Live | None = None
        #: The last completed step: lost steps are counted from it.
        self.reached = 0

    def leave(self, state: Tree, progress: Progress, slices: Collection[int]) -> None:
        """Keeps a state on these slices for the next attempt."""
        self._live = _Live(state=state, progress=progress, slices=frozenset(slices))

    def forget_devices(self) -> None:
        """Drops all states on devices, because all devices are lost."""
        self._live = None
        if self.snapshots is not None:
            self.snapshots.drop_from_devices()
        _empty_orbax_caches()

    def settle(self, *, hangs: bool) -> None:
        """After the loss of a slice: waits for saves in progress, or abandons them.

        If a slice hangs, fetches from it hang as well, and the wait is short.
        """
        seconds = timeouts.FETCH_FROM_HANGING.s if hangs else timeouts.SAVE_AT_LOSS.s
        reason = "its slice does not answer"
        if self.snapshots is not None and not self.snapshots.wait(seconds):
            self.snapshots.give_up(reason)
        if self.checkpoints is not None and not self.checkpoints.wait_for_copies(seconds):
            self.checkpoints.give_up(reason)

    def newest_step(self) -> int | None:
        """Returns the step that `restore` would begin with, as far as known."""
        steps = [
            self._live.progress.step if self._live else None,
            self.snapshots.step if self.snapshots else None,
            self.checkpoints.latest_step if self.checkpoints else None,
        ]
        return max((step for step in steps if step is not None), default=None)

    def restore(
        self,
        init: Tree | Callable[[], Tree],
        placement: Placement,
        within: Within[Any],
        slices: Collection[int],
    ) -> tuple[Tree, Progress]:
        """Returns the newest state, placed as requested; without one, the initial state.

        `within` makes calls that may wait for slices; `slices` are those of the next
        attempt.
        """
        began = time.monotonic()
        shapes = jax.eval_shape(init if callable(init) else lambda: init)
        like = describe(shapes, placement)
        found = self._newest(like, within, slices)
        # The user's functions are called here, on the user's thread, with its settings of JAX.
        origin, state, progress = found or ("initial", _begin(init, like), Progress())
        within(functools.partial(jax.block_until_ready, state))
        self._resume_from = None
        lost = max(0, self.reached - progress.step)
        self.reached = progress.step
        took_s = time.monotonic() - began
        self._emit(
            StateRestored(step=progress.step, duration_s=took_s, origin=origin, lost_steps=lost)
        )
        return state, progress

    def rescue(self) -> None:
        """Saves the last snapshot, if it is newer than the newest checkpoint.

        Needs no devices, unless the snapshot is on them; then it may raise LookupError or
        TimeoutError.
        """
        if self.snapshots is None or self.checkpoints is None:
            return
        if not self.checkpoints.wait_for_copies(timeouts.FETCH_FROM_HANGING.s):
            self.checkpoints.give_up("training ends")
        if not self.checkpoints.wait(timeouts.SAVE_AT_LOSS.s):
            raise TimeoutError(
                f"a checkpoint has not been written within {timeouts.SAVE_AT_LOSS.s:g} s"
            )
        step = self.snapshots.step
        if step is None or step <= (self.checkpoints.latest_step or 0):
            return
        with Waiters("sps-elastic-rescue") as waiters:
            outcome = waiters.call("fetch", self.snapshots.fetch)
            if not outcome.wait(timeouts.SAVE_AT_LOSS.s):
                raise TimeoutError(
                    f"the slices did not return it within {timeouts.SAVE_AT_LOSS.s:g} s"
                )
            found = outcome.result()
        if found is not None:
            self.checkpoints.save(*found)
            self.checkpoints.wait(timeouts.SAVE_AT_LOSS.s)

    def _newest(
        self, like: Tree, within: Within[Any], slices: Collection[int]
    ) -> tuple[str, Tree, Progress] | None:
        live, self._live = self._live, None
        # A state on other slices may hang.
        if live is not None and live.slices.issubset(slices):
            try:
                state = within(functools.partial(_moved, live.state, like))
            except jax.errors.JaxRuntimeError:
                pass  # another slice was lost meanwhile: use another state
            else:
                return "live", state, live.progress
        del live
        if self.checkpoints is not None:
            self.checkpoints.wait(timeouts.SAVE_AT_LOSS.s)
        wanted = self._resume_from
        on_disk = self.checkpoints.latest_step if self.checkpoints is not None else None
        if self.snapshots is not None and wanted is None:
            self.snapshots.wait(timeouts.FETCH_FROM_HANGING.s)
            if self.snapshots.step is not None and self.snapshots.step >= (on_disk or 0):
                found = within(functools.partial(self.snapshots.restore, like))
                if found is not None:
                    return "snapshot", *found
        if self.checkpoints is not None:
            found = within(functools.partial(self.checkpoints.restore, like, step=wanted))
            if found is not None:
                return "checkpoint", *found
        return None


def _moved(state: Tree, like: Tree) -> Tree:
    return jax.block_until_ready(place(state, like))


def _empty_orbax_caches() -> None:
    """Clears Orbax's (0.12) caches, whose keys contain shardings.

    They would keep the client of an ended proxy, and its threads.
    """
    for known in gc.get_objects():
        # Not isinstance(), which would inspect objects that imitate other types.
        if type(known) is _CACHED and str(known.__module__).startswith(_ORBAX_ARRAYS):
            known.cache_clear()


def _begin(init: Tree | Callable[[], Tree], like: Tree) -> Tree:
    if not callable(init):
        return place(init, like)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, like)
    return jax.jit(init, out_shardings=shardings)()
