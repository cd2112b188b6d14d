"""What a process of pytest does in a run."""

from __future__ import annotations

import pytest

__all__ = ["runs_tests"]


def runs_tests(config: pytest.Config) -> bool:
    """Whether this process collects and runs tests; xdist's first process only hands them out."""
    return hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
