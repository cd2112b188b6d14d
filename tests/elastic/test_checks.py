"""Elastic training on plain CPU devices: each check is a test, all in one process of JAX's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.jax_checks.parent import RunCheck, child_that_answers
from tests.elastic.checks_all import MODULES as MODULES  # noqa: PLC0414 - fills CHECKS
from tests.elastic.registry import CHECKS


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """One process for all checks of this file that one worker of pytest runs."""
    with child_that_answers("tests.elastic.child") as run:
        yield run


@pytest.mark.parametrize("name", CHECKS)
def test_elastic(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
