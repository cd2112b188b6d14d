"""Chromium for tests that look at the page as a person does; patience with a slow service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from harness.chromium import chromium, skip_without_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    skip_without_chromium()
    with chromium() as browser:
        yield browser


@pytest.fixture
def patient_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits longer for a service than 5 s, which a busy machine may take for an answer."""
    monkeypatch.setenv("SPS_PATIENCE", "10")
