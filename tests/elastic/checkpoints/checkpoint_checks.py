"""Checks of checkpoints: what is restored, which steps are kept, and object stores."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.checkpoints.errors import CheckpointMismatch
from shared_pathways_service.elastic.checkpoints.file_store import Store
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.progress import Progress
from tests.elastic.checkpoints.states import (
    Told,
    assert_restores,
    assert_same,
    check,
    like,
    mesh,
    progress_of,
    save,
    state_of,
)


@check
def saves_and_restores_all_kinds_of_leaves(directory: str) -> None:
    told = save(directory, 1, 2, 2)
    assert told.steps("checkpoint.saved") == [1, 2]
    saved = [event for event in told if event.kind == "checkpoint.saved"]
    for event in saved:
        assert event.duration_s is not None
        blocked = event.data["blocked_s"]
        assert isinstance(blocked, float)
        assert 0 <= blocked <= event.duration_s
        size = event.data["bytes"]
        assert isinstance(size, int)
        assert size > 48 * 500 * 4
        assert event.data["path"] == f"{directory}/{event.step}"
    again = Told()
    assert_restores(directory, 2, again)
    assert again.steps("checkpoint.kept") == [1, 2]
    assert again.only("checkpoint.restoring").data["path"] == f"{directory}/2"
    infos = list_checkpoints(directory, checksums=True)
    assert [(i.step, i.state, i.epoch, i.loss) for i in infos] == [
        (1, "committed", 0, 1.0),
        (2, "committed", 0, 0.5),
    ]
    assert all(info.time is not None and info.time.endswith("Z") for info in infos)


@check
def arrays_of_this_process_are_saved_too(directory: str) -> None:
    """A snapshot that is saved is such a state; numpy itself does not know all of these kinds."""
    dtypes = (jnp.bfloat16, jnp.float8_e4m3fn, jnp.int4, jnp.float32, jnp.bool_, jnp.complex64)
    state = {str(np.dtype(d)): jnp.arange(12).reshape(4, 3).astype(d) for d in dtypes}
    keys = jax.random.split(jax.random.key(5), 4)
    cut = NamedSharding(mesh(4), PartitionSpec("x"))
    placed = jax.device_put({**state, "keys": keys}, cut)
    host = {**jax.tree.map(np.asarray, state), "keys": np.asarray(jax.random.key_data(keys))}
    with Checkpoints(directory, asynchronous=False) as checkpoints:
        checkpoints.save(host, progress_of(1))
        found = checkpoints.restore(like(placed))
    assert found is not None
    assert_same(found[0], placed)
    for leaf in jax.tree.leaves(found[0]):
        assert leaf.sharding.is_equivalent_to(cut, leaf.ndim)


@check
def nothing_to_restore(directory: str) -> None:
    with Checkpoints(f"{directory}/new/one") as checkpoints:
        assert checkpoints.latest_step is None
        assert checkpoints.restore(like(state_of(1))) is None
        assert checkpoints.wait(0)


@check
def keeps_the_newest_and_every_so_many(directory: str) -> None:
    save(directory, *range(1, 8), keep=2, keep_period=3)
    assert [info.step for info in list_checkpoints(directory)] == [3, 6, 7]
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.latest_step == 7


@check
def the_state_may_be_donated_during_a_save(directory: str) -> None:
    advance = jax.jit(lambda x: x * 2 + 1, donate_argnums=0)
    numbers = np.arange(1 << 18, dtype=np.float32)
    x = jax.device_put(numbers, NamedSharding(mesh(4), PartitionSpec("x")))
    with Checkpoints(directory) as checkpoints:
        checkpoints.save({"x": x}, Progress(step=1))
        for _ in range(3):
            x = advance(x)
        jax.block_until_ready(x)
        checkpoints.wait()
        found = checkpoints.restore({"x": like(x)})
    assert found is not None
    np.testing.assert_array_equal(found[0]["x"], numbers)


@check
def other_meshes(directory: str) -> None:
    wanted = 1
    for devices in (12, 8, 12):
        with Checkpoints(directory) as checkpoints:
            found = checkpoints.restore(like(state_of(1, devices)))
            if found is not None:
                wanted = found[1].step
                assert_same(found[0], state_of(wanted, devices))
            checkpoints.save(state_of(wanted + 1, devices), progress_of(wanted + 1))
    assert wanted == 3


@check
def another_model(directory: str) -> None:
    save(directory, 1, 2)
    other = like(state_of(1))
    other["params"]["w"] = jax.ShapeDtypeStruct((48, 501), jnp.float32)
    other["params"]["b"] = jax.ShapeDtypeStruct((7,), jnp.float32)
    other["head"] = jax.ShapeDtypeStruct((3,), jnp.float32)
    del other["accumulated"]
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        with pytest.raises(CheckpointMismatch) as caught:
            checkpoints.restore(other)
        assert checkpoints.latest_step == 2
    assert caught.value.step == 2
    assert caught.value.differences == (
        "accumulated.0: only the checkpoint has it, float32[48,500]",
        "accumulated.1: only the checkpoint has it, int32[]",
        "head: float32[3], which the checkpoint does not have",
        "params.b: float32[7], in the checkpoint bfloat16[7]",
        "params.w: float32[48,501], in the checkpoint float32[48,500]",
    )
    assert not told.steps("checkpoint.quarantined")


def in_a_store(directory: str) -> None:
    """A life of checkpoints in an object store; the directory is empty."""
    told = save(directory, 1, 2, 3, keep=2)
    assert told.steps("checkpoint.saved") == [1, 2, 3], told
    assert [(i.step, i.state, i.loss) for i in list_checkpoints(directory)] == [
        (2, "committed", 1 / 2),
        (3, "committed", 1 / 3),
    ]
    with Checkpoints(directory) as checkpoints:
        for devices in (12, 8):
            found = checkpoints.restore(like(state_of(1, devices)))
            assert found is not None
            assert found[1] == progress_of(3)
            assert_same(found[0], state_of(3, devices))
    # A part that is not what was uploaded: the one before is used, and the step is saved anew.
    store = Store(directory)
    state = store.files("3/state")
    name = max(state, key=lambda name: state[name].size)
    store.write_text(f"3/state/{name}", "cut short")
    again = Told()
    with Checkpoints(directory, on_event=again.append) as checkpoints:
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert_same(found[0], state_of(2))
        checkpoints.save(state_of(3), progress_of(3))
    assert again.only("checkpoint.quarantined").step == 3
    store.remove("3/commit_success.txt")
    assert_restores(directory, 2)
    assert [(i.step, i.state, i.reason) for i in list_checkpoints(directory)][:1] == [
        (2, "committed", None)
    ]
    aside = list_checkpoints(directory)[1:]
    assert [(i.step, i.state) for i in aside] == [(3, "quarantined")] * 2
    assert f"{name} has 9 bytes" in (aside[0].reason or "")
    assert aside[1].reason == "it was not finished"


@check
def in_google_cloud_storage(_directory: str) -> None:
    in_a_store("gs://bucket/runs/one/checkpoints")


@check
def in_s3(_directory: str) -> None:
    in_a_store("s3://bucket/runs/one/checkpoints/")
