"""What checks of elastic training and stress programs train, on CPU devices, and how it went."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np

from harness.deadlines import wait_until
from shared_pathways_service import elastic
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import Fault, Plan, SimulatedSlices

SLICES = 3
GONE = math.inf
EXAMPLES = 96
STEPS = 24


def slice_of(device: jax.Device) -> int:
    return int(device.id) // 4


@dataclasses.dataclass
class Run:
    """The results of a run.

    Attributes:
      events: All of them.
      used: The numbers of the examples of each step that stood, by step.
      counts: How many slices each step ran on, by step.
      attempts: Slices of each attempt.
      result: The state at the end.
    """

    events: list[Event] = dataclasses.field(default_factory=list)
    used: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    counts: dict[int, int] = dataclasses.field(default_factory=dict)
    attempts: list[tuple[int, ...]] = dataclasses.field(default_factory=list)
    result: Any = None

    def kinds(self, prefix: str = "") -> list[str]:
        return [event.kind for event in self.events if event.kind.startswith(prefix)]

    def first(self, kind: str) -> Event:
        return next(event for event in self.events if event.kind == kind)

    def all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def examples(self) -> list[int]:
        """Returns the examples of all steps that stood, in order."""
        return [number for step in sorted(self.used) for number in self.used[step]]


def dataset() -> grain.MapDataset[Any]:
    return grain.MapDataset.range(EXAMPLES).shuffle(seed=7)


def initial_state() -> dict[str, Any]:
    return {
        "w": jnp.linspace(-1.0, 1.0, 8, dtype=jnp.float32),
        "momentum": jnp.zeros(8, jnp.float32),
        "key": jax.random.key(3),
        "count": jnp.zeros((), jnp.int32),
    }


TRACES: list[int] = []


@jax.jit
def train_step(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    TRACES.append(1)  # where it is traced, not where it runs

    def loss_of(w: jax.Array) -> jax.Array:
        features = jnp.sin(batch[:, None] * jnp.arange(1, 9))
        return jnp.mean((features @ w - jnp.cos(batch)) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["w"])
    key, noise = jax.random.split(state["key"])
    gradient += 0.01 * jax.random.normal(noise, (8,))
    momentum = 0.9 * state["momentum"] + gradient
    new = {
        "w": state["w"] - 0.01 * momentum,
        "momentum": momentum,
        "key": key,
        "count": state["count"] + 1,
    }
    return new, loss


@contextlib.contextmanager
def world() -> Iterator[SimulatedSlices]:
    with SimulatedSlices(slice_of) as simulated:
        yield simulated


def options(**others: Any) -> elastic.Options:
    """Returns options for quick tests."""
    return elastic.Options(
        **{
            "elastic_min_slice_count": 2,
            "global_batch_size": 24,
            "checkpoint_period": 5,
            "poll_interval": 0.05,
            "settle_seconds": 0.0,
            "probe_timeout": 60.0,
            "elastic_timeout_seconds": 120.0,
            "flap_limit": 100,
            **others,
        }
    )


def train(
    chosen: elastic.Options,
    *faults: Fault,
    directory: Path | None = None,
    steps: int = STEPS,
    slices: SimulatedSlices | None = None,
    pause: Callable[[int], None] = lambda _: None,
    back_at: Collection[int] = (),
    **others: Any,
) -> Run:
    """Trains for some steps with faults, all of which must have fired; returns the results.

    Args:
      back_at: At these steps all slices that are down are revived, and waited for.
    """
    done = Run()
    to_revive = set(back_at)
    with contextlib.ExitStack() as stack:
        simulated = slices or stack.enter_context(world())
        plan = Plan(simulated, *faults)

        def on_event(event: Event) -> None:
            done.events.append(event)
            plan.on_event(event)

        def function(attempt: elastic.Attempt) -> Any:
            simulated.begin()
            done.attempts.append(attempt.slices)
            state = attempt.restore(initial_state)
            for batch in attempt.batches(dataset()):
                if attempt.progress.step >= steps:
                    break
                step = attempt.progress.step
                pause(step)
                if step in to_revive and attempt.slice_count < SLICES:
                    to_revive.remove(step)
                    revive(manager, simulated)
                plan.step(step, attempt.slices)
                given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
                state, loss = train_step(state, given)
                done.used[step] = [int(number) for number in batch]
                done.counts[step] = attempt.slice_count
                attempt.step_done(state, simulated.result(loss, attempt.slices))
            return jax.tree.map(
                lambda leaf: np.asarray(
                    jax.random.key_data(leaf)
                    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                    else leaf
                ),
                state,
            )

        manager = stack.enter_context(
            elastic.Manager(
                options=chosen,
                directory=directory,
                slice_key=slice_of,
                probe=simulated.probe,
                on_event=on_event,
                console=False,
            )
        )
        done.result = manager.run(function, **others)
        plan.assert_fired()
    return done


def revive(manager: elastic.Manager, simulated: SimulatedSlices) -> None:
    """Has all slices back, and waits until the manager has noticed."""
    for index in range(SLICES):
        simulated.revive(index)
    wait_until(
        "all slices",
        lambda: manager.active_slice_indices | manager.available_inactive_slices == {0, 1, 2},
    )


def assert_same(one: Any, other: Any, *, exactly: bool = True) -> None:
    """Compares two states."""

    def compare(a: Any, b: Any) -> None:
        if exactly:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)

    jax.tree.map(compare, one, other)
