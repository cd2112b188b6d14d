"""Checks of what is lost when a slice goes while a state is being restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from harness.elastic.example_training import STEPS, assert_same, options, slice_of, train
from shared_pathways_service import elastic
from shared_pathways_service.elastic.snapshots.client_memory import HostArray
from shared_pathways_service.testing.faults import fail_at
from tests.elastic.registry import check


@check
def a_snapshot_in_this_process_outlives_a_loss_during_its_restore(directory: Path) -> None:
    del directory  # no checkpoints: without the snapshot all would be lost
    brought = HostArray.put
    losses = iter(["DATA_LOSS: virtual slice 2 was lost: killed"])

    def bring(self: HostArray, sharding: Any) -> jax.Array:
        for text in losses:
            raise jax.errors.JaxRuntimeError(text)
        return brought(self, sharding)

    with mock.patch.object(HostArray, "put", bring):
        done = train(options(snapshot_period=4), fail_at(11, 1))
    assert not list(losses)
    assert len(done.attempts) == 3
    assert not done.all("snapshot.failed")
    restored = done.all("elastic.restored")
    assert [event.data["origin"] for event in restored] == ["initial", "snapshot"]
    assert restored[1].step == 8
    assert len(done.examples()) == STEPS * 24
    assert_same(done.result, train(options()).result, exactly=False)


@check
def what_is_of_64_bits_stays_so(directory: Path) -> None:
    del directory
    found = []

    def function(attempt: elastic.Attempt) -> None:
        state = attempt.restore({"x": np.arange(4, dtype=np.float64) / 3})
        found.append(np.asarray(state["x"]))
        while attempt.progress.step < 6:
            if attempt.progress.step == 5 and attempt.number == 1:
                raise jax.errors.JaxRuntimeError("DATA_LOSS: virtual slice 1 was lost")
            attempt.step_done(state, 1.0)

    with (
        jax.enable_x64(True),  # of this thread, not of those that restore
        elastic.Manager(
            options=options(snapshot_period=4), slice_key=slice_of, console=False
        ) as manager,
    ):
        manager.run(function)
    assert [one.dtype for one in found] == [np.float64] * 2
    np.testing.assert_array_equal(found[0], found[1])
