"""Finds the browser in which the page is looked at."""

from __future__ import annotations

import shutil

__all__ = ["chromium_path"]

#: As in scripts/browser.
_NAMES = ("chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str:
    """Returns the path of Chromium; a machine without one fails."""
    path = next(filter(None, map(shutil.which, _NAMES)), None)
    assert path is not None, "Chromium is missing: run scripts/browser, or install it"
    return path
