"""The browser in which pages are looked at."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

from playwright.sync_api import Browser, sync_playwright

__all__ = ["chromium", "chromium_path"]

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
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    assert path is not None, "Chromium is missing: run scripts/browser, or install it"
    return path
