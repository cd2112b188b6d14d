"""Chromium for tests that look at the page as a person does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from harness.chromium import chromium_path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser without a window; a machine without one fails the tests."""
    with sync_playwright() as playwright:
        # (Chromium's sandbox refuses to run as root, as in most containers.)
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), chromium_sandbox=os.geteuid() != 0
        )
        yield browser
        browser.close()
