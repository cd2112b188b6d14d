"""Where the scripts keep what they can make again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.processes import REPOSITORY

SOURCED = '. scripts/_environment.sh ""; need_cache_directory; echo "$cache_directory"'
#: Nobody can create a directory there, root neither.
NOWHERE = "/proc"


def cache_directory(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euc", SOURCED],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_home_has_it(tmp_path: Path) -> None:
    found = cache_directory(HOME=str(tmp_path))
    assert found.stdout == f"{tmp_path}/.cache/shared-pathways-service\n"
    assert not found.stderr


def test_a_temporary_directory_stands_in_for_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    found = cache_directory(HOME=NOWHERE, TMPDIR=str(tmp_path))
    stand_in = tmp_path / f"sps-{os.getuid()}-cache"
    assert found.stdout == f"{stand_in}\n"
    assert f"{stand_in} is used instead" in found.stderr
    assert stand_in.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "HOME is not set. hint: set it, or SPS_CACHE_DIR"),
        ({"HOME": NOWHERE, "TMPDIR": NOWHERE}, f"{NOWHERE}/.cache/shared-pathways-service cannot"),
        ({"HOME": "/", "SPS_CACHE_DIR": f"{NOWHERE}/sps"}, f"{NOWHERE}/sps cannot be written"),
    ],
)
def test_no_directory_is_an_error_with_a_remedy(variables: dict[str, str], told: str) -> None:
    found = cache_directory(**variables)
    assert found.returncode == 2
    assert f"error: {told}" in found.stderr
    assert "SPS_CACHE_DIR" in found.stderr.splitlines()[-1]
