"""A pytest plug-in that gives tests more time on a machine that is slow or busy."""

from __future__ import annotations

import pytest

from harness.deadlines import deadline, slowness


def pytest_configure() -> None:
    """Measures before the workers start, which then have the same figure."""
    slowness()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lets tests run longer before pytest ends them, those with a limit of their own too."""
    usual = config.getoption("timeout", None)
    for item in items:
        own = item.get_closest_marker("timeout")
        if own is not None:
            [limit] = own.args
        elif usual is None:
            limit = float(config.getini("timeout") or 0)
        else:
            continue  # that of the command line holds
        if limit:
            item.add_marker(pytest.mark.timeout(deadline(limit)), append=False)
