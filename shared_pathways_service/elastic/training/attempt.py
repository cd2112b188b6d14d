"""One attempt at training, which the training function gets."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import grain
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.api.validation import check_json
from shared_pathways_service.elastic.errors import ScaleUpSignalError
from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.policy.due import CheckpointsDue
from shared_pathways_service.elastic.policy.gate import may_grow
from shared_pathways_service.elastic.policy.options import Options, SliceRange
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.slices import mesh_of
from shared_pathways_service.elastic.training.barrier import Barrier, as_on_this_thread
from shared_pathways_service.elastic.training.data import Batches, LastBatch
from shared_pathways_service.elastic.training.restoring import States
from shared_pathways_service.elastic.training.steps import (
    Loss,
    PendingStep,
    Waitable,
    wait_for_arrays,
)
from shared_pathways_service.elastic.trees import Placement, Tree
from shared_pathways_service.errors import SliceLost
from shared_pathways_service.events import Event
from shared_pathways_service.events.training import TrainingStep
from shared_pathways_service.patience import timeouts

__all__ = ["Attempt", "Loss"]


T = TypeVar("T")
#: During a restore, one slice may have finished while another one has not.
_RESTORE_LOOKS: Final = 3


class Attempt:
    """The slices to train on, and the means to continue where the last attempt ended.

    Made by `Manager.run`. A training function calls `restore` once, takes its batches from
    `batches`, and calls `step_done` after each step. It must not keep arrays after its end.

    Attributes:
      number: From 1: one more than the number of failures before it.
      slices: Indices of the slices to train on.
      progress: The progress of training.
    """

    def __init__(
        self,
        *,
        number: int,
        slices: Sequence[int],
        watch: SliceWatch,
        states: States,
        options: Options,
        allowed: SliceRange,
        down_events: int,
        grows: bool,
        barrier: Barrier,
        emit: Callable[[Event], None],
    ) -> None:
        self.number = number
        self.slices = tuple(slices)
        self.progress = Progress()
        self._watch = watch
        self._states = states
        self._options = options
        self._allowed = allowed
        self._down_events = down_events
        self._grows = grows
        self._barrier = barrier
        self._emit = emit
        self._due = CheckpointsDue(options)
        self._batches: Batches | None = None
        self._pending: PendingStep | None = None
        self._last_end = time.monotonic()
        self._first = True
        self._tflops: float | None = None

    @property
    def slice_count(self) -> int:
        """The number of slices to train on."""
        return len(self.slices)

    @property
    def slice_to_devices(self) -> Mapping[int, Sequence[jax.Device]]:
        """The devices of each slice to train on."""
        return {index: self._watch.devices[index] for index in self.slices}

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices to train on, slice by slice."""
        return tuple(d for devices in self.slice_to_devices.values() for d in devices)

    @property
    def mesh(self) -> Mesh:
        """A mesh of the slices by the devices of each: axes ``slice`` and ``device``.

        The same slices make an equal mesh, for which nothing is compiled again.

        Raises:
          InvalidRequestError: The slices have different sizes; make a mesh of `devices` yourself.
        """
        return mesh_of(self.slice_to_devices)

    def over_batch(self) -> NamedSharding:
        """Returns the sharding of a batch: its examples over all devices of `mesh`."""
        return NamedSharding(self.mesh, PartitionSpec(("slice", "device")))

    def replicated(self) -> NamedSharding:
        """Returns the sharding of an array that is replicated on all devices of `mesh`."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def batch_size(self) -> int:
        """Examples per step, on all slices together.

        Raises:
          InvalidRequestError: `Options.global_batch_size` is not set.
        """
        return self._options.batch_size(self.slice_count, self._allowed.most)

    def restore(self, init: Tree | Callable[[], Tree], placement: Placement | None = None) -> Tree:
        """Returns the state to continue with, and sets `progress`.

        Args:
          init: The initial state, used if there is no other, or a function that makes it, which JAX
            must be able to trace.
          placement: The placement: a sharding for all, a pytree of them, or a function that makes
            that from the state's shapes. None: replicated.

        Returns:
          The newest available state: that of the last step if slices were added, otherwise of a
          snapshot or a checkpoint.

        Raises:
          CheckpointMismatch: The checkpoint contains another state than `init` makes.
          CheckpointNotFound: The checkpoint of `Options.resume_from` does not exist, or is damaged.
          SliceLost: A slice does not answer; do not catch it.
        """
        where = self.replicated() if placement is None else placement
        reached = self._states.reached
        state, self.progress = self._states.restore(init, where, self._within, self.slices)
        if self.number > 1 and reached == self.progress.step - 1:
            # The step was saved, but the slice was lost before its loss was known.
            self._report_step(self.progress.step, None, None)
        self._due.begin(self.progress.epoch, time.monotonic())
        if self._batches is not None:
            self._batches.set_state(self.progress.data)
        self._last_end = time.monotonic()
        return state

    def batches(
        self,
        dataset: grain.MapDataset[Any],
        *,
        epochs: int | None = None,
        last_batch: LastBatch | None = None,
        read_options: grain.ReadOptions | None = None,
    ) -> Batches:
        """Returns the batches from the current position, of `batch_size` examples each.

        Args:
          dataset: One epoch of single examples; shuffled and mapped as wanted, neither batched nor
            repeated.
          epochs: The number of epochs; None: no limit.
          last_batch: The examples at the very end that do not fill a batch: ``partial``: they make
            a smaller one; ``drop``: they are not used. Required only if there are any.
          read_options: Grain's options for reading ahead; None: 16 batches, by 8 threads. Examples
            that were read ahead are dropped when an attempt ends, and read again by the next.

        Raises:
          InvalidRequestError: There are such examples, and `last_batch` is not set.
        """
        if self._batches is not None:
            self._batches.close()
        self._batches = Batches(
            dataset,
            self.batch_size,
            epochs=epochs,
            last_batch=last_batch,
            may_vary=self._options.batch == "scale" and self._allowed.policy == "shrink",
            read_options=read_options,
        )
        self._batches.set_state(self.progress.data)
        return self._batches

    def set_flops(self, per_step: float) -> None:
        """Sets the number of floating-point operations of a step on all devices, for the log."""
        self._tflops = per_step / 1e12 / len(self.devices)

    def step_done(
        self,
        state: Tree,
        loss: Loss | None = None,
        *,
        epoch: int | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Ends a step: saves the state if that is due, and interrupts training if necessary.

        The step's program may still be running. Its end is awaited, through `loss`, when the next
        step is done, so that one step is prepared while another one runs.

        Args:
          state: The arrays after this step. They may be donated to the next step.
          loss: The loss of this step.
          epoch: If the batches are not from `batches`: the epoch of the next example.
          data: If the batches are not from `batches`: the state of the data iterator, for JSON.

        Raises:
          InvalidRequestError: `data` does not survive a conversion to JSON.
          ScaleUpSignalError: There are more slices; do not catch it.
          jax.errors.JaxRuntimeError: The previous step failed; do not catch it.
          SliceLost: A slice does not answer; do not catch it.
        """
        if data is not None:
            check_json("data", data)
        self.settle()
        if isinstance(loss, Waitable):
            loss.copy_to_host_async()
        if self._batches is not None:
            epoch, data = self._batches.epoch, self._batches.get_state()
        self.progress = Progress(
            step=self.progress.step + 1,
            epoch=self.progress.epoch if epoch is None else epoch,
            data=self.progress.data if data is None else data,
        )
        self._pending = pending = PendingStep(step=self.progress.step, loss=loss)
        self._wait_if_due(state)
        self._keep(state)
        self._grow_if_possible(state)
        now = time.monotonic()
        pending.seconds, self._last_end = now - self._last_end, now

    def settle(self) -> None:
        """Waits for the last reported step, and emits its event."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        given = pending.loss
        loss: float | None
        if isinstance(given, Waitable):
            loss = self._barrier.pass_with(lambda: float(np.asarray(given)), self.slices)
        else:
            loss = None if given is None else float(given)
        seconds = pending.seconds
        if seconds is None:
            # Within its own `step_done`: the rest of that call is not part of the step.
            now = time.monotonic()
            seconds, self._last_end = now - self._last_end, now
        if self.progress.step == pending.step:
            self.progress = dataclasses.replace(self.progress, loss=loss)
        self._states.reached = pending.step
        self._report_step(pending.step, seconds, loss)
        self._first = False

    def finish(self) -> None:
        """Training has ended successfully: waits for the checkpoint in progress."""
        self.settle()
        checkpoints = self._states.checkpoints
        if checkpoints is not None:
            fetched = functools.partial(checkpoints.wait_for_copies, timeouts.SAVES_AT_END.s)
            try:
                self._barrier.pass_with(fetched, self.slices, "the last save")
            except SliceLost:
                checkpoints.give_up("its slice does not answer")
            checkpoints.wait(timeouts.SAVES_AT_END.s)

    def close(self) -> None:
        """Ends reading ahead."""
        if self._batches is not None:
            self._batches.close()
            self._batches = None

    def _within(self, wait: Callable[[], T]) -> T:
        """Makes a call that may wait for the slices to restore a stored state."""
        as_here = as_on_this_thread(wait, self.devices[0])
        return self._barrier.pass_with(as_here, self.slices, "restoring", _RESTORE_LOOKS)

    def _report_step(self, step: int, seconds: float | None, loss: float | None) -> None:
        tflops = self._tflops
        self._emit(
            TrainingStep(
                step=step,
                duration_s=seconds,
                loss=loss,
                tflops_per_device=tflops / seconds if tflops is not None and seconds else None,
                slice_count=self.slice_count,
                down_events=self._down_events,
                first=self._first,
            )
        )

    def _wait_if_due(self, state: Tree) -> None:
        """Waits for the step that was just reported, if waiting later has no advantage."""
        every = self._options.health_every
        due = every > 0 and self.progress.step % every == 0
        assert self._pending is not None
        loss = self._pending.loss
        if due and not isinstance(loss, Waitable):
            self._barrier.pass_with(lambda: wait_for_arrays(state), self.slices)
        if due or not isinstance(loss, Waitable):
            self.settle()

    def _keep(self, state: Tree) -> None:
        step = self.progress.step
        snapshots, checkpoints = self._states.snapshots, self._states.checkpoints
        period = self._options.snapshot_period
        if snapshots is not None and period and step % period == 0:
            snapshots.take(state, self.progress)
        if checkpoints is not None and self._due.is_due(
            step, self.progress.epoch, time.monotonic()
        ):
            # It contains the loss, and cannot fail any more.
            self.settle()
            checkpoints.save(state, self.progress)

    def _grow_if_possible(self, state: Tree) -> None:
        usable = self._watch.usable() if self._grows else ()
        if not may_grow(self.slices, usable, self._allowed):
            return
        self.settle()
        self._states.leave(state, self.progress, self.slices)
        raise ScaleUpSignalError(f"more slices than {self.slice_count} are available")
