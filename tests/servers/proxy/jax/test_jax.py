"""Real JAX through a real proxy process: each check of `jax_checks…` is a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.jax_checks.all_checks import COMPARED
from harness.jax_checks.basics import CHECKS
from harness.jax_checks.parent import RunCheck, child_on_a_proxy


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """One proxy and one JAX process for all checks of this file."""
    with child_on_a_proxy("harness.jax_checks.child") as run:
        yield run


@pytest.mark.parametrize(
    "name",
    # (Those that need callbacks are there where this process has loaded their own tests, too.)
    [
        pytest.param(name, marks=pytest.mark.thorough) if "_every_" in name else name
        for name in (*CHECKS, *COMPARED)
        if not name.startswith(("callbacks_", "compile_time_"))
    ],
)
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
