"""Real JAX through a proxy that computes on executors: the same checks as on its own devices."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.jax_checks.parent import RunCheck, child_on_a_proxy
from harness.processes import KIND
from harness.proxy.executors import running_executors


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """Two slices of one host each, a proxy and a JAX process for all checks of this file."""
    flags = [f"--instance_type={KIND}"]
    with (
        running_executors(flags, flags) as running,
        child_on_a_proxy("harness.jax_checks.child", proxys_flags=running.proxys_flags) as run,
    ):
        yield run


@pytest.mark.parametrize("name", ["devices", "sharded_jit", "gradients_across_slices", "tokens"])
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
