"""Tests without threads and processes: none is looked for when they end."""

from tests.pure import leaves_nothing_behind

__all__ = ["leaves_nothing_behind"]
