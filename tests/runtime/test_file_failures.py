"""What errors of files in the directories of the settings say."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime.file_failures import explained

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
