"""Python functions that a program, or XLA while it compiles it, calls through a real proxy process.

Each of `harness.jax_checks.all_callback_checks` is a test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.jax_checks.all_callback_checks import NAMES
from harness.jax_checks.parent import RunCheck, child_on_a_proxy

CHILD = "harness.jax_checks.callbacks_child"


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """Runs a check in a process that has JAX on a proxy; a worker of the tests has one of each."""
    with child_on_a_proxy(CHILD) as run:
        yield run


@pytest.mark.parametrize("name", NAMES)
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
