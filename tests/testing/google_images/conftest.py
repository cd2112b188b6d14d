"""A cluster of stand-ins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from shared_pathways_service.testing.google_images import (
    MACHINE_VARIABLE,
)
from tests.testing.google_images.cluster import (
    OVERRIDE,
    VARIABLE,
    Cluster,
)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)
