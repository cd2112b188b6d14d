"""Python functions that a program, or XLA while it compiles it, calls through a real proxy process.

Each check of `jax_checks_callbacks`, `jax_checks_compile_time` and `jax_checks_nested` is a
test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.proxy.jax.jax_checks_callbacks import CALLBACK_CHECKS
from tests.servers.proxy.jax.jax_checks_compile_time import COMPILE_TIME_CHECKS
from tests.servers.proxy.jax.jax_checks_nested import NESTED_CHECKS
from tests.servers.proxy.jax.jax_compared import COMPARED
from tests.servers.proxy.jax.jax_parent import RunCheck, child_on_a_proxy

CHILD = "tests.servers.proxy.callbacks.callbacks_child"
NAMES = [
    *CALLBACK_CHECKS,
    *COMPILE_TIME_CHECKS,
    *NESTED_CHECKS,
    *(name for name in COMPARED if name.startswith(("callbacks_", "compile_time_"))),
]


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """Runs a check in a process that has JAX on a proxy; a worker of the tests has one of each."""
    with child_on_a_proxy(CHILD) as run:
        yield run


@pytest.mark.parametrize("name", NAMES)
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
