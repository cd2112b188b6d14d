"""Chromium for tests that look at the page as a person does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from harness.chromium import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window; a machine without one fails the tests."""
    with chromium() as browser:
        yield browser
