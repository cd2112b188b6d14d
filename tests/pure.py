"""A fixture for folders whose tests start neither threads nor processes."""

from __future__ import annotations

import pytest

__all__ = ["leaves_nothing_behind"]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """Nothing: pure code starts neither threads nor processes, and looking for some takes time."""
