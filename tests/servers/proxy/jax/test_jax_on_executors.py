"""Real JAX through a proxy that computes on executors: the same checks as on its own devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.jax_checks.parent import RunCheck, child_on_a_proxy, child_that_answers
from harness.jax_checks.served_python import SERVED
from harness.processes import KIND, ServerProcess, is_alive
from harness.proxy.executors import running_executors
from tests.servers.proxy.conftest import wait_until


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """Two slices of one host each, a proxy and a JAX process for all checks of this file."""
    flags = [f"--instance_type={KIND}"]
    with (
        running_executors(flags, flags) as running,
        child_on_a_proxy("harness.jax_checks.child", proxys_flags=running.proxys_flags) as run,
    ):
        yield run


@pytest.fixture(scope="module")
def run_python_check() -> Iterator[RunCheck]:
    """The same, with Python on the executors' hosts."""
    flags = [f"--instance_type={KIND}", "--colocated_python"]
    with running_executors(flags, flags) as running:
        proxys_flags = [*running.proxys_flags, "--colocated_python"]
        module = "harness.jax_checks.colocated_child"
        with child_on_a_proxy(module, proxys_flags=proxys_flags) as run:
            yield run


@pytest.mark.parametrize("name", SERVED)
def test_colocated_python(run_python_check: RunCheck, name: str) -> None:
    failure = run_python_check(name)
    assert not failure, failure


@pytest.mark.race
def test_a_session_ends_its_processes_on_executors(tmp_path: Path) -> None:
    flags = [f"--instance_type={KIND}", "--colocated_python"]
    with running_executors(flags, flags) as running:
        socket = tmp_path / "s"
        proxys_flags = [f"--server_socket={socket}", f"--virtual_slices={KIND},{KIND}"]
        proxys_flags += [*running.proxys_flags, "--colocated_python"]
        with ServerProcess("shared_pathways_service.servers.proxy", proxys_flags) as proxy:
            with child_that_answers("harness.jax_checks.colocated_child", f"unix:{socket}") as run:
                failure = run("functions_run_in_another_process")
                assert not failure, failure
                (process,) = psutil.Process(running.processes[0].pid).children()
                assert is_alive(process)
                assert not psutil.Process(proxy.pid).children()
            wait_until(lambda: not is_alive(process))
            assert all(psutil.pid_exists(executor.pid) for executor in running.processes)
            assert proxy.stop() == 0


@pytest.mark.parametrize("name", ["devices", "sharded_jit", "gradients_across_slices", "tokens"])
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
