"""A real resource manager and real workers for each test that asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.processes import Service

MakeService = Callable[..., Service]


@pytest.fixture
def make_service(own_directories: Path) -> Iterator[MakeService]:
    """Starts services with `Service`'s arguments; they end with the test."""
    with contextlib.ExitStack() as stack:

        def make(*flags: str, **kwargs: Any) -> Service:
            return stack.enter_context(Service(own_directories / "s", *flags, **kwargs))

        yield make


@pytest.fixture
def service(make_service: MakeService) -> Service:
    """A service of two slices of `KIND`, no worker started."""
    return make_service()
