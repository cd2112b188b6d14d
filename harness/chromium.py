"""The browser in which pages are looked at."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

__all__ = ["chromium", "chromium_path", "skip_without_chromium"]

#: As in scripts/browser.
_NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Runs Chromium without a window for the length of the block."""
    with (
        sync_playwright() as playwright,
        # (Chromium's sandbox refuses to run as root, as in most containers.)
        playwright.chromium.launch(
            executable_path=chromium_path(), chromium_sandbox=os.geteuid() != 0
        ) as browser,
    ):
        yield browser


def chromium_path() -> str:
    """Returns the path of Chromium; a machine without one fails."""
    path = _found()
    assert path is not None, "Chromium is missing: install it, e.g. apt-get install chromium"
    return path


def skip_without_chromium() -> None:
    """Skips a test where there is no Chromium, except in CI."""
    if _found() is None and os.environ.get("CI") != "true":
        pytest.skip("no Chromium: install it, e.g. apt-get install chromium")


def _found() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)
