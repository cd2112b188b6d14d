"""Checks of damaged and unfinished checkpoints: the newest whole one is restored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import orbax.checkpoint as ocp
import pytest

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.checkpoints.errors import CheckpointNotFound
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.progress import Progress
from tests.elastic.checkpoints.states import (
    Told,
    assert_restores,
    assert_same,
    check,
    largest_file,
    like,
    progress_of,
    save,
    state_of,
)


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
def any_missing_or_truncated_file(directory: str) -> None:
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
def unfinished_checkpoints_take_bounded_space(directory: str) -> None:
    save(directory, 1)
    for step in range(2, 8):
        save(directory, step)
        Path(directory, str(step), "commit_success.txt").unlink()
        assert_restores(directory, 1)
    assert [i.step for i in list_checkpoints(directory)] == [1, 5, 6, 7]


@check
def an_interrupted_deletion(directory: str) -> None:
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
def all_damaged(directory: str) -> None:
    save(directory, 1, 2)
    for step in (1, 2):
        largest_file(directory, step).unlink()
    with Checkpoints(directory) as checkpoints:
        assert checkpoints.latest_step is None
        assert checkpoints.restore(like(state_of(1))) is None
    assert [i.state for i in list_checkpoints(directory)] == ["quarantined"] * 2


@check
def a_chosen_step(directory: str) -> None:
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
def a_checkpoint_of_another_program(directory: str) -> None:
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
