"""Programs of others that tests need."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

__all__ = ["needed_program"]


def needed_program(name: str, hint: str) -> Path:
    """Returns the path of a program; skips the test where it is missing, except in CI.

    Args:
      name: Searched in PATH.
      hint: How to install it.
    """
    found = shutil.which(name)
    if found is None:
        missing = f"no {name}: {hint}"
        # (There a skipped test would not be noticed.)
        assert os.environ.get("CI") != "true", missing
        pytest.skip(missing)
    return Path(found)
