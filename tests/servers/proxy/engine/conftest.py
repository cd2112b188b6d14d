"""Compile caches in a directory of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_pathways_service.servers.proxy.engine.compile_cache import CompileCache
from tests.servers.proxy.engine.cached_programs import (
    MACHINE,
    MakeCache,
)


@pytest.fixture
def directory(own_directories: Path) -> Path:
    return own_directories / "compiled"


@pytest.fixture
def make_cache(directory: Path) -> Iterator[MakeCache]:
    """Opens caches in one directory, as so many proxies would; they end with the test."""
    made: list[CompileCache] = []

    def make(limit: int = 1 << 30, identity: bytes = MACHINE) -> CompileCache:
        made.append(CompileCache(directory, limit, identity))
        return made[-1]

    yield make
    for cache in made:
        cache.close()
