"""A pytest plug-in that gives tests more time on a machine that is slow or busy."""

from __future__ import annotations

import pytest

from harness.deadlines import deadline, slowness


def pytest_configure() -> None:
    """Measures before the workers start, which then have the same figure."""
    slowness()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets tests without a limit of their own run longer before pytest ends them."""
    if config.getoption("timeout", None) is not None:
        return  # that of the command line holds
    limit = float(config.getini("timeout") or 0)
    for item in items:
        if limit and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(deadline(limit)))
