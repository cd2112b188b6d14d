"""Functions of colocated Python that wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.proxy.python_functions import Waiting

MakeWaiting = Callable[..., Waiting]


@pytest.fixture
def make_waiting(tmp_path: Path) -> Iterator[MakeWaiting]:
    """Makes functions that wait; their pipes end with the test."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "waiting", *, forks: bool = False) -> Waiting:
            directory = tmp_path / name
            directory.mkdir()
            waiting = Waiting(directory, forks=forks)
            stack.callback(waiting.close)
            return waiting

        yield make
