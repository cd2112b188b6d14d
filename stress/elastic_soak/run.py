"""The run that `stress.elastic_soak` disturbs, and the run with which it is compared."""

from __future__ import annotations

import collections
import dataclasses
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from harness.elastic import example_training
from shared_pathways_service import elastic
from shared_pathways_service.events import Event
from stress.elastic_soak.disruptions import Disruption, Survival
from stress.elastic_soak.disruptor import CHECKPOINT_PERIOD, WHOLE_S, Disruptor
from stress.elastic_soak.training import State, Training
from stress.elastic_soak.worlds import World
from stress.growth import Held

__all__ = ["Soaked", "soak"]

SNAPSHOT_PERIOD: Final = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Differences:
    """Differences from an undisturbed run.

    Attributes:
      wrong: What must not be; of losses and parameters, what is more than the sums of another
        number of slices differ by.
      epochs: That were looked at, the last one perhaps in part.
      unreported: Steps that count, whose loss was not reported.
      most_of_losses: The largest difference of one step's loss.
      most_of_parameters: The largest difference at the end.
    """

    wrong: Sequence[str] = ("it was not compared",)
    epochs: int = 0
    unreported: int = 0
    most_of_losses: float | None = None
    most_of_parameters: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Soaked:
    """A run that has ended.

    Attributes:
      steps: That stood.
      seconds: It took.
      error: The error that ended it; None: it ended well.
      last: The disruption that was not survived.
      unplanned: Unplanned errors.
      differences: From an undisturbed run.
      events: How many of each kind.
    """

    steps: int
    seconds: float
    error: str | None
    last: Survival | None
    unplanned: Sequence[str]
    differences: Differences
    events: Mapping[str, int]


def soak(
    world: World,
    disruptions: Sequence[Disruption],
    directory: Path,
    pace_s: float,
    after_each: Callable[[Survival, Held], None],
) -> Soaked:
    """Trains through all disruptions, and compares with a run of as many steps and none.

    Args:
      world: Where.
      disruptions: What shall happen.
      directory: Gets the ledger and checkpoints.
      pace_s: A step takes so long at least.
      after_each: Called after each disruption, with the usage of this process.
    """
    training = Training(world, pace_s)
    disruptor = Disruptor(world, training, disruptions, after_each)
    counts: collections.Counter[str] = collections.Counter()

    def on_event(event: Event) -> None:
        counts[event.kind] += 1
        disruptor.add(event)

    options = example_training.options(
        elastic_min_slice_count=1,
        elastic_max_retries=sys.maxsize,
        elastic_max_scale_ups=sys.maxsize,
        elastic_timeout_seconds=WHOLE_S,
        settle_seconds=0.2,
        poll_interval=0.1,
        # Slices that flap are left out for a moment.
        flap_limit=4,
        flap_window_seconds=10.0,
        flap_backoff_seconds=0.25,
        flap_backoff_most_seconds=1.0,
        snapshot_period=SNAPSHOT_PERIOD,
        checkpoint_period=CHECKPOINT_PERIOD,
        health_every=5,
        **world.options,
    )
    error, wrong = None, Differences()
    began = time.monotonic()
    with (
        elastic.Manager(
            world.devices(),
            options=options,
            directory=directory,
            slice_key=world.slice_key,
            probe=world.probe,
            reconnect=world.reconnect,
            on_event=on_event,
            console=False,
        ) as manager,
        disruptor.at_work(),
    ):
        result = None
        try:
            result = manager.run(training)
        except Exception as raised:  # noqa: BLE001 - it is what is told
            error = f"{type(raised).__name__}: {raised}"
            traceback.print_exc()
    seconds = time.monotonic() - began
    if result is not None:
        wrong = compare(world, training, result)
    return Soaked(
        steps=training.ends_at or 0,
        seconds=seconds,
        error=error or disruptor.failure,
        last=disruptor.current,
        unplanned=disruptor.unplanned,
        differences=wrong,
        events=dict(sorted(counts.items())),
    )


def compare(world: World, done: Training, result: State) -> Differences:
    """Compares a run with an undisturbed one of as many steps, on all slices."""
    calm = Training(world, 0.0)
    calm.ends_at = steps = done.ends_at or 0
    with elastic.Manager(
        world.devices(),
        options=example_training.options(elastic_enabled=False, health_every=0),
        slice_key=world.slice_key,
        on_event=calm.add,
        console=False,
    ) as manager:
        expected = manager.run(calm)
    wrong = []
    used = done.used[:steps].ravel()
    epochs = [
        used[n : n + example_training.EXAMPLES]
        for n in range(0, used.size, example_training.EXAMPLES)
    ]
    for number, epoch in enumerate(epochs):
        whole = np.array_equal(np.sort(epoch), np.arange(example_training.EXAMPLES))
        if not whole and (number < len(epochs) - 1 or len(set(epoch.tolist())) != epoch.size):
            wrong.append(f"epoch {number} did not use each example once")
    if not np.array_equal(done.used[:steps], calm.used[:steps]):
        wrong.append("examples were used in another order")
    # A step whose state was saved counts, even if its loss was not awaited before a slice was lost.
    reported = np.isfinite(done.losses[:steps])
    losses, calm_losses = done.losses[:steps][reported], calm.losses[:steps][reported]
    if not np.allclose(losses, calm_losses, rtol=1e-4, atol=1e-5):
        worst = int(np.argmax(np.abs(losses - calm_losses)))
        wrong.append(f"a loss of {losses[worst]}, undisturbed {calm_losses[worst]}")
    floats = [name for name, leaf in expected.items() if leaf.dtype == np.float32]
    for name, leaf in expected.items():
        tolerance = {"rtol": 1e-4, "atol": 1e-6} if name in floats else {"rtol": 0, "atol": 0}
        if not np.allclose(result[name], leaf, **tolerance):
            wrong.append(f"{name}: {result[name]}, undisturbed {leaf}")
    return Differences(
        wrong=wrong,
        epochs=len(epochs),
        unreported=int(np.sum(~reported)),
        most_of_losses=float(np.max(np.abs(losses - calm_losses))),
        most_of_parameters=max(float(np.max(np.abs(result[n] - expected[n]))) for n in floats),
    )
