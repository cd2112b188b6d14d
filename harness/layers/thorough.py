"""Marks what shows for further values what a test of `scripts/test --all` shows for one."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["thorough"]


def thorough(*values: Any) -> list[Any]:
    """Returns further values of a test's parameter, for `scripts/test --long`."""
    return [pytest.param(value, marks=pytest.mark.thorough) for value in values]
