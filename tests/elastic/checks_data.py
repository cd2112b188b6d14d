"""Checks of what a step uses: the end of the data, accumulated gradients, slices of any size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from harness.elastic.example_training import (
    GONE,
    STEPS,
    assert_same,
    dataset,
    options,
    slice_of,
    train,
    world,
)
from shared_pathways_service import elastic
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.testing.faults import corrupt_newest, fail_at
from tests.elastic.registry import check

EVERY = 4


@jax.jit
def accumulate(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    """Adds gradients up, and applies them after `EVERY` batches."""

    def loss_of(w: jax.Array) -> jax.Array:
        return jnp.mean((batch - w) ** 2)

    loss, gradient = jax.value_and_grad(loss_of)(state["w"])
    total = state["gradients"] + gradient
    full = state["batches"] + 1 == EVERY
    return {
        "w": jnp.where(full, state["w"] - 0.001 * total, state["w"]),
        "gradients": jnp.where(full, 0.0, total),
        "batches": jnp.where(full, 0, state["batches"] + 1),
    }, loss


def train_accumulating(steps: int, directory: Path, **others: Any) -> tuple[int, Mapping[str, Any]]:
    """Trains to a step; returns the step that it began with, and the state at the end."""

    def function(attempt: elastic.Attempt) -> tuple[int, Mapping[str, Any]]:
        state = attempt.restore(
            {"w": jnp.zeros(()), "gradients": jnp.zeros(()), "batches": jnp.zeros((), jnp.int32)}
        )
        begun = attempt.progress.step
        for batch in attempt.batches(dataset()):
            if attempt.progress.step == steps:
                break
            given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
            state, loss = accumulate(state, given)
            attempt.step_done(state, loss)
        return begun, jax.device_get(state)

    with elastic.Manager(
        options=options(**others), directory=directory, slice_key=slice_of, console=False
    ) as manager:
        return manager.run(function)


@check
def it_goes_on_in_the_middle_of_an_accumulation(directory: Path) -> None:
    _, whole = train_accumulating(11, directory / "whole")
    # Checkpoints after 3 and 6 of batches that are applied after 4 and 8.
    train_accumulating(7, directory / "cut", checkpoint_period=3)
    begun, found = train_accumulating(11, directory / "cut", checkpoint_period=3)
    assert begun == 6
    assert int(found["batches"]) == 3
    assert_same(found, whole)


@check
def the_end_of_the_data(directory: Path) -> None:
    del directory

    def sizes(**others: Any) -> list[int]:
        def function(attempt: elastic.Attempt) -> list[int]:
            attempt.restore({"x": np.zeros(4)})
            return [len(batch) for batch in attempt.batches(dataset(), epochs=2, **others)]

        with elastic.Manager(
            options=options(global_batch_size=30), slice_key=slice_of, console=False
        ) as manager:
            return manager.run(function)

    assert sizes(last_batch="partial") == [30] * 6 + [12]
    assert sizes(last_batch="drop") == [30] * 6
    with pytest.raises(InvalidRequestError, match="partial or drop: 12 examples at the end of 192"):
        sizes()
    with pytest.raises(InvalidRequestError, match="last_batch='half'"):
        sizes(last_batch="half")


@check
def data_that_json_does_not_know_is_refused(directory: Path) -> None:
    del directory
    for data in ({"order": (1, 2)}, {1: "one"}, {"loss": math.nan}, {"seen": {1, 2}}):

        def function(attempt: elastic.Attempt, data: Any = data) -> None:
            state = attempt.restore({"x": np.zeros(4)})
            attempt.step_done(state, data=data)

        with (
            elastic.Manager(options=options(), slice_key=slice_of, console=False) as manager,
            pytest.raises(InvalidRequestError, match="data="),
        ):
            manager.run(function)


@check
def one_slice_alone(directory: Path) -> None:
    events: list[Event] = []

    def function(attempt: elastic.Attempt) -> None:
        simulated.begin()
        state = attempt.restore({"x": np.zeros(4)})
        attempt.set_flops(8e12)
        while attempt.progress.step < 9:
            if attempt.progress.step == 7:
                # A spare takes its place at once.
                simulated.kill(0, 0.0) if attempt.number == 1 else None
                simulated.look([0])
            attempt.step_done(state, 1.5)

    with (
        world() as simulated,
        elastic.Manager(
            jax.devices()[:4],
            options=options(elastic_min_slice_count=1, checkpoint_period=3),
            directory=directory,
            slice_key=slice_of,
            probe=simulated.probe,
            on_event=events.append,
            console=False,
        ) as manager,
    ):
        manager.run(function)
    steps = [event for event in events if event.kind == "elastic.step"]
    assert [event.step for event in steps] == [1, 2, 3, 4, 5, 6, 7, 7, 8, 9]
    for event in steps:
        # Of four devices, two TFLOP each.
        assert event.duration_s is not None
        assert event.data["tflops_per_device"] == pytest.approx(2.0 / event.duration_s)


@check
def slices_of_different_sizes(directory: Path) -> None:
    del directory
    sizes = {0: 5, 1: 7}

    def function(attempt: elastic.Attempt) -> float:
        assert {i: len(d) for i, d in attempt.slice_to_devices.items()} == sizes
        with pytest.raises(InvalidRequestError, match=r"devices=\[5, 7\]"):
            _ = attempt.mesh
        mesh = jax.sharding.Mesh(np.array(attempt.devices), ("device",))
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        state = attempt.restore({"x": np.arange(4.0)}, everywhere)
        attempt.step_done(state, state["x"][1])
        return float(state["x"].sum())

    with elastic.Manager(
        options=options(global_batch_size=None, elastic_min_slice_count=1),
        slice_key=lambda device: 0 if device.id < sizes[0] else 1,
        console=False,
    ) as manager:
        assert manager.run(function) == 6.0


@check
def a_checkpoint_that_is_damaged_in_a_run_is_passed_over(directory: Path) -> None:
    done = train(
        options(),
        corrupt_newest(directory / "checkpoints", kind="checkpoint.saved", count=2),
        fail_at(12, 1, down_for=GONE),
        directory=directory,
        back_at=[14],
    )
    [aside] = done.all("checkpoint.quarantined")
    assert aside.step == 10
    assert done.all("elastic.restored")[1].step == 5
    assert done.result["count"] == STEPS
    assert_same(done.result, train(options()).result, exactly=False)
