"""The training of the elastic soak, which records what each step used and reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import jax
import numpy as np

from harness.elastic import example_training
from shared_pathways_service import elastic
from shared_pathways_service.events import Event
from stress.elastic_soak.disruptions import NOTICED_S, Disruption, SoakError
from stress.elastic_soak.worlds import World

__all__ = ["State", "Training"]

State: TypeAlias = dict[str, np.ndarray[Any, Any]]

#: Steps that are noted: more than any run has.
_MOST_STEPS: Final = 400_000
#: Steps after the last disruption.
_LAST_STEPS: Final = 30


class Training:
    """The run. Records the data and the loss of each step; of a repeated step, the last.

    Args:
      world: The slices of the run.
      pace_s: A step takes so long at least.
    """

    def __init__(self, world: World, pace_s: float) -> None:
        self._world = world
        self._pace_s = pace_s
        self.used = np.full((_MOST_STEPS, 24), -1, np.int8)
        self.losses = np.full(_MOST_STEPS, np.nan, np.float32)
        #: The step at which it ends; None: when it is stopped.
        self.ends_at: int | None = None
        self._over = threading.Event()
        self._lie: Disruption | None = None
        #: Set when a step has failed so.
        self.lied = threading.Event()
        self._never = threading.Event()

    def end(self) -> None:
        """Has training end some steps later."""
        self._over.set()

    def lie(self, disruption: Disruption) -> None:
        """Has the next step fail with an error that names no slice, and a slice with it."""
        self.lied.clear()
        self._lie = disruption

    def add(self, event: Event) -> None:
        """Keeps a step's loss."""
        loss = event.data.get("loss")
        if event.kind == "elastic.step" and event.step and loss is not None:
            self.losses[event.step - 1] = loss

    def __call__(self, attempt: elastic.Attempt) -> State:
        self._world.begin()
        state = attempt.restore(example_training.initial_state)
        for batch in attempt.batches(example_training.dataset()):
            step = attempt.progress.step
            if self._over.is_set() and self.ends_at is None:
                self.ends_at = step + _LAST_STEPS
            if self.ends_at is not None and step >= self.ends_at:
                break
            self._before_step(attempt)
            given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
            state, loss = example_training.train_step(state, given)
            self.used[step] = batch
            attempt.step_done(state, self._world.result(loss, attempt.slices))
        return {
            name: np.asarray(jax.random.key_data(leaf) if name == "key" else leaf)
            for name, leaf in state.items()
        }

    def _before_step(self, attempt: elastic.Attempt) -> None:
        self._never.wait(self._pace_s)
        disruption, self._lie = self._lie, None
        if disruption is not None:
            [index] = disruption.slices
            self._world.kill(index, NOTICED_S)
            self._wait_until_lost(attempt.slice_to_devices[index])
            self.lied.set()
            raise jax.errors.JaxRuntimeError("INTERNAL: an assertion about something else failed")
        self._world.look(attempt.slices)

    def _wait_until_lost(self, devices: Sequence[jax.Device]) -> None:
        deadline = time.monotonic() + NOTICED_S
        try:
            while time.monotonic() < deadline:
                self._world.probe(devices)
        except jax.errors.JaxRuntimeError:
            return
        raise SoakError("a slice that was killed computes on")
