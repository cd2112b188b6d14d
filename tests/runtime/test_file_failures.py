"""What errors of files in the directories of the settings say."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime.file_failures import explained, explained_by_path, named

ELSEWHERE = "set SPS_STATE_DIR to another directory"


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, f"free space there, or {ELSEWHERE}"),
        (errno.EDQUOT, f"free space there, or {ELSEWHERE}"),
        (errno.EFBIG, f"raise the limit of file sizes (`ulimit -f`), or {ELSEWHERE}"),
        (errno.EROFS, ELSEWHERE),
    ],
)
def test_an_error_says_what_to_do(number: int, hint: str, tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as caught, explained(tmp_path, "SPS_STATE_DIR"):
        raise OSError(number, os.strerror(number))
    assert caught.value.message == f"cannot write in {tmp_path}: {os.strerror(number)}"
    assert caught.value.hint == hint


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full: Linux has")
def test_an_error_of_a_write_names_its_file_and_setting(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.symlink_to("/dev/full")
    with (
        pytest.raises(PreflightError) as caught,
        explained_by_path({"SPS_STATE_DIR": tmp_path}),
        named(path),
        path.open("wb") as file,
    ):
        file.write(b"{}")
    assert caught.value.message == f"cannot write in {tmp_path}: {path}: No space left on device"
    assert caught.value.hint == f"free space there, or {ELSEWHERE}"
