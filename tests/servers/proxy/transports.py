"""Both gRPC servers of a proxy, for tests of behaviour that clients rely on with either."""

from __future__ import annotations

import pytest


@pytest.fixture(params=["core", "public"])
def both(request: pytest.FixtureRequest) -> str:
    """A module that assigns this to `transport` runs its tests with each server."""
    kind: str = request.param
    return kind
