"""The umask of this process, with and without Linux's files of processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_pathways_service.runtime.umask import current_umask


@pytest.fixture
def odd_umask() -> Iterator[int]:
    before = os.umask(0o026)
    yield 0o026
    os.umask(before)


def test_the_umask_of_this_process(odd_umask: int) -> None:
    assert current_umask() == odd_umask


def test_the_umask_without_proc(odd_umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **_options: object) -> str:
        raise FileNotFoundError(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", missing)
        assert current_umask() == odd_umask
    assert current_umask() == odd_umask
