"""Checkpoints on a disk that becomes full: what was committed stays, and there is room again."""

from __future__ import annotations

import pytest

from harness.programs import program
from harness.small_disk import IS_POSSIBLE, fill, small_disk
from shared_pathways_service.elastic.checkpoints.files import Folder, list_checkpoints

pytestmark = pytest.mark.skipif(not IS_POSSIBLE, reason="only root can mount a small file system")

#: Room for three checkpoints of a tenth of it each, which have files beside the array.
_SIZE = 2 << 20
_SAVER = """
import jax
jax.config.update("jax_platforms", "cpu")
import jax.numpy as jnp, numpy as np
from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.progress import Progress

def state(step):
    return {"w": jnp.asarray(np.random.default_rng(step).random(50_000), jnp.float32)}

with Checkpoints(os.environ["TEST_DIRECTORY"], on_event=lambda event: events.append(event)) as all:
    for line in sys.stdin:
        word, step = line.split()
        events = []
        if word == "save":
            all.save(state(int(step)), Progress(step=int(step)))
            all.wait()
        else:
            found, progress = all.restore(state(0))
            assert (found["w"] == state(progress.step)["w"]).all()
        last = [event for event in events if event.kind != "checkpoint.kept"][-1]
        say(last.kind, step=last.step, reason=last.reason)
"""


def test_a_full_disk_costs_no_checkpoint_that_was_committed_nor_room_for_the_next() -> None:
    with small_disk(_SIZE) as disk:
        directory = disk / "checkpoints"
        with program(_SAVER, env={"TEST_DIRECTORY": str(directory)}) as saver:
            for step in (1, 2):
                saver.tell(f"save {step}")
                assert saver.expect("checkpoint.saved")["step"] == step
            taken = fill(disk)
            for step in (3, 4):
                saver.tell(f"save {step}")
                assert saver.expect("checkpoint.failed")["reason"] == (
                    f"cannot write in {directory}: No space left on device; free space there, or "
                    "set directory= or checkpoint_directory= to another directory"
                )
            saver.tell("restore newest")
            assert saver.expect("checkpoint.restoring")["step"] == 2
            taken.unlink()
            saver.tell("save 5")
            assert saver.expect("checkpoint.saved")["step"] == 5
        found = list_checkpoints(directory, checksums=True)
        assert [(info.step, info.state) for info in found] == [
            (1, "committed"),
            (2, "committed"),
            (5, "committed"),
        ]


#: Beside the disk's own directory, that of the checkpoints and the lock: the first one that has no
#: room is a checkpoint's directory, or that of its arrays.
@pytest.mark.parametrize("files", [3, 5])
def test_a_save_whose_directories_cannot_be_made_fails_and_does_not_hang(files: int) -> None:
    with small_disk(_SIZE, files=files) as disk:
        directory = disk / "checkpoints"
        with program(_SAVER, env={"TEST_DIRECTORY": str(directory)}) as saver:
            saver.tell("save 1")
            reason = saver.expect("checkpoint.failed")["reason"]
        assert f"cannot write in {directory}: No space left on device" in reason
        assert list_checkpoints(directory) == ()


def test_an_old_checkpoint_is_deleted_where_there_is_no_room_for_a_mark() -> None:
    with small_disk(_SIZE) as disk:
        directory = disk / "checkpoints"
        with program(_SAVER, env={"TEST_DIRECTORY": str(directory)}) as saver:
            for step in (1, 2, 3):
                saver.tell(f"save {step}")
                assert saver.expect("checkpoint.saved")["step"] == step
        fill(disk)
        folder = Folder(directory)
        folder.delete(1)
        assert [info.step for info in list_checkpoints(directory)] == [2, 3]
