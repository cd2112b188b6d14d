"""Checks of checkpoints that need JAX; each gets a directory of its own."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.elastic.checkpoints import item
from shared_pathways_service.elastic.checkpoints.checkpoints import (
    CheckpointMismatch,
    CheckpointNotFound,
    Checkpoints,
    CheckpointsBusy,
    list_checkpoints,
)
from shared_pathways_service.elastic.checkpoints.file_store import Store
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event

CHECKS: dict[str, Callable[[str], None]] = {}


def check(function: Callable[[str], None]) -> Callable[[str], None]:
    CHECKS[function.__name__] = function
    return function


class Told(list[Event]):
    """Collects events, and says of each kind which steps it was told of."""

    def steps(self, kind: str) -> list[int | None]:
        return [event.step for event in self if event.kind == kind]

    def only(self, kind: str) -> Event:
        [event] = [event for event in self if event.kind == kind]
        return event


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("x",))


def state_of(step: int, devices: int = 12) -> dict[str, Any]:
    """Returns a state with a leaf of every kind; its values tell the step."""
    over = NamedSharding(mesh(devices), PartitionSpec("x"))
    everywhere = NamedSharding(mesh(devices), PartitionSpec())
    numbers = np.random.default_rng(step).standard_normal((48, 500)).astype(np.float32)
    params = {
        "w": jax.device_put(numbers, over),
        "b": jax.device_put(np.full(7, step, jnp.bfloat16), everywhere),
    }
    return {
        "params": params,
        "optimizer": optax.adam(1e-3).init(params),
        "key": jax.device_put(jax.random.key(step), everywhere),
        "accumulated": [jax.device_put(numbers * 2, over), jnp.int32(step)],
        "host": np.arange(step, step + 5),
        "count": step,
    }


def like(state: Any) -> Any:
    def shape_of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        return leaf

    return jax.tree.map(shape_of, state)


def assert_same(found: Any, wanted: Any) -> None:
    def compare(one: Any, other: Any) -> None:
        if isinstance(other, jax.Array):
            assert one.dtype == other.dtype
            assert one.sharding.is_equivalent_to(other.sharding, one.ndim)
            if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)
        else:
            assert type(one) is type(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    jax.tree.map(compare, found, wanted)


def progress_of(step: int) -> Progress:
    return Progress(step=step, epoch=step // 4, loss=1 / step, data={"position": step * 24})


def save(directory: str, *steps: int, **options: Any) -> Told:
    told = Told()
    with Checkpoints(directory, on_event=told.append, **options) as checkpoints:
        for step in steps:
            checkpoints.save(state_of(step), progress_of(step))
    return told


def assert_restores(directory: str, step: int, told: Told | None = None, **options: Any) -> None:
    told = Told() if told is None else told
    with Checkpoints(directory, on_event=told.append, **options) as checkpoints:
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert found[1] == progress_of(step)
        assert_same(found[0], state_of(step))


def largest_file(directory: str, step: int) -> Path:
    files = [path for path in Path(directory, str(step)).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


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
def what_lies_in_this_process_is_as_good(directory: str) -> None:
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
def the_state_may_be_donated_at_once(directory: str) -> None:
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
def a_truncated_newest(directory: str) -> None:
    save(directory, 1, 2)
    target = largest_file(directory, 2)
    os.truncate(target, target.stat().st_size // 2)
    told = Told()
    assert_restores(directory, 1, told)
    moved = told.only("checkpoint.quarantined")
    assert moved.step == 2
    assert moved.data["moved_to"] == f"{directory}/quarantine/2-1"
    assert f"{target.name} has" in (moved.reason or "")
    one, aside = list_checkpoints(directory)
    assert (one.step, one.state, aside.step, aside.state) == (1, "committed", 2, "quarantined")
    assert aside.reason == moved.reason
    assert json.loads(Path(directory, "quarantine/2-1/reason.json").read_text())["step"] == 2


@check
def a_flipped_bit_in_the_newest(directory: str) -> None:
    for round_, checksums in enumerate((True, False)):
        save(directory, 1, 2)
        target = largest_file(directory, 2)
        content = bytearray(target.read_bytes())
        content[len(content) // 2] ^= 1
        target.write_bytes(content)
        assert list_checkpoints(directory)[1].state == "committed"
        assert list_checkpoints(directory, checksums=True)[1].state == "damaged"
        if not checksums:
            # What the checksums are for: Orbax itself gives other numbers, without a word.
            with Checkpoints(directory, checksums=False) as checkpoints:
                found = checkpoints.restore(like(state_of(1)))
            assert found is not None
            assert found[1].step == 2
            with pytest.raises(AssertionError):
                assert_same(found[0], state_of(2))
        told = Told()
        assert_restores(directory, 1, told)
        moved = told.only("checkpoint.quarantined")
        assert "checksum differs" in (moved.reason or "")
        assert moved.data["moved_to"] == f"{directory}/quarantine/2-{round_ + 1}"


@check
def any_file_that_is_gone_or_cut(directory: str) -> None:
    save(directory, 1)
    for path in sorted(Path(directory, "1").rglob("*")):
        if path.parent.name == "1" or not path.is_file() or path.name == "commit_success.txt":
            continue
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        assert list_checkpoints(directory)[0].state == "damaged", path
        if path.name != "progress.json":  # without it, it is one that another program saved
            path.unlink()
            assert list_checkpoints(directory)[0].state == "damaged", path
        path.write_bytes(content)
    assert_restores(directory, 1)


@check
def an_uncommitted_newest(directory: str) -> None:
    save(directory, 1, 2, 3)
    Path(directory, "3/commit_success.txt").unlink()
    assert [i.state for i in list_checkpoints(directory)] == [
        "committed",
        "committed",
        "uncommitted",
    ]
    told = Told()
    assert_restores(directory, 2, told)
    assert told.only("checkpoint.quarantined").reason == "it was not finished"
    # Saved anew; and Orbax's own manager is not led astray by what lies there.
    save(directory, 3)
    with ocp.CheckpointManager(
        directory,
        options=ocp.CheckpointManagerOptions(
            atomicity_options=ocp.options.AtomicityOptions(
                mode=ocp.options.AtomicityMode.COMMIT_FILE
            )
        ),
    ) as manager:
        assert manager.all_steps() == [1, 2, 3]
        state = manager.restore(
            3,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(like(state_of(3)))),
        ).state
        assert_same(state, state_of(3))


@check
def many_that_were_not_finished_take_no_more_room(directory: str) -> None:
    save(directory, 1)
    for step in range(2, 8):
        save(directory, step)
        Path(directory, str(step), "commit_success.txt").unlink()
        assert_restores(directory, 1)
    assert [i.step for i in list_checkpoints(directory)] == [1, 5, 6, 7]


@check
def a_deletion_that_was_cut_short(directory: str) -> None:
    save(directory, 1, 2, 3)
    Path(directory, "1/deleting.txt").touch()
    Path(directory, "2/deleting.txt").touch()
    Path(directory, "2/commit_success.txt").unlink()
    largest_file(directory, 2).unlink()
    assert [i.step for i in list_checkpoints(directory)] == [3]
    told = Told()
    assert_restores(directory, 3, told)
    assert not told.steps("checkpoint.quarantined")
    assert sorted(path.name for path in Path(directory).iterdir()) == [".lock", "3"]


@check
def all_are_damaged(directory: str) -> None:
    save(directory, 1, 2)
    for step in (1, 2):
        largest_file(directory, step).unlink()
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.latest_step is None
        assert checkpoints.restore(like(state_of(1))) is None
    assert [i.state for i in list_checkpoints(directory)] == ["quarantined"] * 2


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


@check
def one_that_is_picked(directory: str) -> None:
    save(directory, 1, 2, 3, 4, keep=4)
    shapes = like(state_of(1))
    with Checkpoints(directory) as checkpoints:
        text = r"step 9 .*existing steps: 1, 2, 3, 4"
        with pytest.raises(CheckpointNotFound, match=text) as caught:
            checkpoints.restore(shapes, step=9)
        assert caught.value.steps == (1, 2, 3, 4)
        largest_file(directory, 4).unlink()
        with pytest.raises(CheckpointNotFound, match=r"is missing.*existing steps: 1, 2, 3"):
            checkpoints.restore(shapes, step=4)
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        found = checkpoints.restore(shapes, step=1)
        assert found is not None
        assert found[1].step == 1
        # Looking moves nothing; going on from there does, as 2 and 3 are another history now.
        assert checkpoints.latest_step == 1
        again = checkpoints.restore(shapes)
        assert again is not None
        assert again[1].step == 1
        checkpoints.save(state_of(2), progress_of(2))
        checkpoints.wait()
        assert checkpoints.latest_step == 2
    assert told.steps("checkpoint.quarantined") == [2, 3]
    assert told.steps("checkpoint.saved") == [2]
    assert_restores(directory, 2)


@check
def a_save_that_fails(directory: str) -> None:
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        with mock.patch.object(item, "write_manifest", side_effect=OSError(28, "No room")):
            checkpoints.save(state_of(1), progress_of(1))
            assert checkpoints.wait()
        failed = told.only("checkpoint.failed")
        assert (failed.step, failed.reason) == (1, "[Errno 28] No room")
        assert checkpoints.latest_step is None
        # The next period saves anew, and so does the same step after a rewind.
        checkpoints.save(state_of(2), progress_of(2))
        checkpoints.save(state_of(1), progress_of(1))
        checkpoints.wait()
        assert told.steps("checkpoint.saved") == [2, 1]
    assert_restores(directory, 2)


@check
def a_save_that_hangs(directory: str) -> None:
    told = Told()
    go_on = threading.Event()
    checkpoints = Checkpoints(directory, on_event=told.append)
    checkpoints.save(state_of(1), progress_of(1))
    checkpoints.wait()
    with mock.patch.object(item, "write_manifest", side_effect=lambda *_a, **_k: go_on.wait()):
        checkpoints.save(state_of(2), progress_of(2))
        assert not checkpoints.wait(0.05)
        # What is there can be had meanwhile.
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert found[1].step == 1
        checkpoints.close(timeout=0.05)
        go_on.set()
        for thread in threading.enumerate():
            if thread.name == "sps-elastic-checkpoint":
                thread.join()
    assert "hangs" in (told.only("checkpoint.failed").reason or "")
    assert told.steps("checkpoint.saved") == [1]
    assert_restores(directory, 1)


@check
def without_a_thread(directory: str) -> None:
    told = Told()
    with Checkpoints(directory, asynchronous=False, on_event=told.append) as checkpoints:
        checkpoints.save(state_of(1), progress_of(1))
        assert told.steps("checkpoint.saved") == [1]
        assert checkpoints.latest_step == 1


@check
def of_another_program(directory: str) -> None:
    options = ocp.CheckpointManagerOptions(
        atomicity_options=ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)
    )
    with ocp.CheckpointManager(directory, options=options) as manager:
        for step in (1, 2):
            manager.save(step, args=ocp.args.Composite(state=ocp.args.StandardSave(state_of(step))))
    infos = list_checkpoints(directory)
    assert [(i.state, i.epoch, i.loss) for i in infos] == [("committed", None, None)] * 2
    with Checkpoints(directory) as checkpoints:
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert found[1] == Progress(step=2)
        assert_same(found[0], state_of(2))
    # It says nothing of its files; what cannot be read is found when it is read.
    target = largest_file(directory, 2)
    os.truncate(target, target.stat().st_size // 2)
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert found[1] == Progress(step=1)
    assert "cannot be read" in (told.only("checkpoint.quarantined").reason or "")


@check
def devices_that_fail_harm_no_checkpoint(directory: str) -> None:
    save(directory, 1)
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        lost = jax.errors.JaxRuntimeError("DATA_LOSS: slice 1 is gone")
        with (
            mock.patch.object(ocp.StandardCheckpointHandler, "restore", side_effect=lost),
            pytest.raises(jax.errors.JaxRuntimeError, match="slice 1 is gone"),
        ):
            checkpoints.restore(like(state_of(1)))
        assert checkpoints.latest_step == 1
    assert not told.steps("checkpoint.quarantined")
    assert_restores(directory, 1)


@check
def a_directory_has_one_that_saves(directory: str) -> None:
    with Checkpoints(directory):
        with pytest.raises(CheckpointsBusy) as caught:
            Checkpoints(directory)
        assert caught.value.pid == os.getpid()
    with Checkpoints(directory):
        pass


@check
def what_is_no_array_is_refused(directory: str) -> None:
    with Checkpoints(directory) as checkpoints:
        for leaf in ("text", object(), np.array(["a"])):
            with pytest.raises(InvalidRequestError, match=r"inner\.0: "):
                checkpoints.save({"inner": [leaf]}, Progress(step=1))
    for options in ({"keep": 0}, {"keep_period": 0}, {"keep": True}, {"checksums": 1}):
        with pytest.raises(InvalidRequestError):
            Checkpoints(directory, **options)


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
