"""Real JAX through a real proxy process that runs colocated Python: each check is a test."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from harness.jax_checks.parent import RunCheck, child_on_a_proxy, child_that_answers
from harness.jax_checks.served_python import SERVED
from harness.processes import KIND, is_alive
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.servers.proxy.conftest import StartProxy, wait_until
from tests.servers.proxy.processes import address_of

CHILD = "harness.jax_checks.colocated_child"


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """One proxy and one JAX process for all checks of this file."""
    with child_on_a_proxy(CHILD, proxys_flags=["--colocated_python"]) as run:
        yield run


@pytest.mark.parametrize("name", SERVED)
def test_colocated_python(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure


def test_a_session_ends_its_process(start_proxy: StartProxy) -> None:
    proxy = start_proxy("--colocated_python")
    with child_that_answers(CHILD, address_of(proxy)) as run:
        failure = run("functions_run_in_another_process")
        assert not failure, failure
        (process,) = psutil.Process(proxy.pid).children()
        assert is_alive(process)
    wait_until(lambda: not is_alive(process))
    proxy.wait_for_line("Session ended")
    assert proxy.stop() == 0


def test_gpus_run_no_colocated_python() -> None:
    with pytest.raises(InvalidRequestError, match="platform=cuda") as raised:
        ProxyServerOptions(virtual_slices=(KIND,), platform="cuda", colocated_python=True)
    assert raised.value.field == "--colocated_python"
