"""Checks of saves that fail or hang."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import resource
import shutil
import threading
from pathlib import Path
from unittest import mock

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from orbax.checkpoint._src.metadata import checkpoint as metadata

from shared_pathways_service.elastic.checkpoints import item
from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.checkpoints.errors import CheckpointsBusy
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.errors import InvalidRequestError, PreflightError
from tests.elastic.checkpoints.states import (
    Told,
    assert_restores,
    check,
    like,
    progress_of,
    save,
    state_of,
)


@check
def a_failing_save(directory: str) -> None:
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with mock.patch.object(item, "write_manifest", side_effect=full):
            checkpoints.save(state_of(1), progress_of(1))
            assert checkpoints.wait()
        failed = told.only("checkpoint.failed")
        assert failed.step == 1
        assert failed.reason == (
            f"cannot write in {directory}: No space left on device; free space there, or set "
            "directory= or checkpoint_directory= to another directory"
        )
        # What there was of it does not take the room of the next one.
        assert not (Path(directory) / "1").exists()
        assert checkpoints.latest_step is None
        # The next period saves anew, and so does the same step after a rewind.
        checkpoints.save(state_of(2), progress_of(2))
        checkpoints.save(state_of(1), progress_of(1))
        checkpoints.wait()
        assert told.steps("checkpoint.saved") == [2, 1]
    assert_restores(directory, 2)


@check
def a_save_whose_metadata_cannot_be_written(directory: str) -> None:
    told = Told()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    without_room = mock.patch.object(metadata._MetadataStoreImpl, "write", side_effect=full)
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        with without_room:
            checkpoints.save(state_of(1), progress_of(1))
            checkpoints.wait()
        # (Orbax writes several files, and would keep the other errors for the next save.)
        checkpoints.save(state_of(2), progress_of(2))
        checkpoints.wait()
        with without_room:
            checkpoints.save(state_of(3), progress_of(3))
            checkpoints.wait()
    assert told.steps("checkpoint.failed") == [1, 3]
    assert told.steps("checkpoint.saved") == [2]
    assert_restores(directory, 2)


@check
def a_hanging_save(directory: str) -> None:
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
def a_directory_has_one_writer(directory: str) -> None:
    with Checkpoints(directory):
        with pytest.raises(CheckpointsBusy) as caught:
            Checkpoints(directory)
        assert caught.value.message.startswith("this program itself saves checkpoints into ")
        assert (caught.value.pid, caught.value.host) == (os.getpid(), platform.node())
    with Checkpoints(directory):
        pass


@check
def a_directory_that_cannot_be_written_is_named_with_what_to_do(directory: str) -> None:
    opened = len([*Path("/dev/fd").iterdir()])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(PreflightError) as caught:
            Checkpoints(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.message == f"cannot write in {directory}: File too large"
    assert caught.value.hint == (
        "raise the limit of file sizes (`ulimit -f`), or set directory= or checkpoint_directory= "
        "to another directory"
    )
    assert len([*Path("/dev/fd").iterdir()]) == opened
    with Checkpoints(directory):
        pass


@check
def a_lock_of_an_earlier_release_names_its_process(directory: str) -> None:
    lock = Path(directory) / ".lock"
    lock.write_text("123\n")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CheckpointsBusy, match="process 123 saves") as caught:
            Checkpoints(directory)
    assert (caught.value.pid, caught.value.host) == (123, None)


@check
def a_directory_that_was_removed_is_made_and_locked_again(directory: str) -> None:
    told = Told()
    with Checkpoints(directory, on_event=told.append) as checkpoints:
        checkpoints.save(state_of(1), progress_of(1))
        checkpoints.wait()
        shutil.rmtree(directory)
        checkpoints.save(state_of(2), progress_of(2))
        checkpoints.wait()
        assert told.steps("checkpoint.saved") == [1, 2]
        assert checkpoints.latest_step == 2
        with pytest.raises(CheckpointsBusy):
            Checkpoints(directory)
        # A program that took it meanwhile keeps it.
        shutil.rmtree(directory)
        with Checkpoints(directory):
            checkpoints.save(state_of(3), progress_of(3))
            checkpoints.wait()
            failed = told.only("checkpoint.failed")
            assert failed.step == 3
            assert f"saves checkpoints into {directory}" in str(failed.reason)
        checkpoints.save(state_of(4), progress_of(4))
        checkpoints.wait()
    assert_restores(directory, 4)


@check
def leaves_that_are_not_arrays_are_refused(directory: str) -> None:
    with Checkpoints(directory) as checkpoints:
        for leaf in ("text", object(), np.array(["a"])):
            with pytest.raises(InvalidRequestError, match=r"inner\.0: "):
                checkpoints.save({"inner": [leaf]}, Progress(step=1))
    for options in ({"keep": 0}, {"keep_period": 0}, {"keep": True}, {"checksums": 1}):
        with pytest.raises(InvalidRequestError):
            Checkpoints(directory, **options)
