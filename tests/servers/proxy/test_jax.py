"""Real JAX through a real proxy process: each check of `jax_checks…` is a test."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.processes import DEADLINE_S, REPOSITORY, ServerProcess
from tests.servers.proxy.conftest import KIND, MODULE
from tests.servers.proxy.jax_checks import CHECKS
from tests.servers.proxy.jax_checks_all import COMPARED

RunCheck = Callable[[str], str]


@pytest.fixture(scope="module")
def run_check() -> Iterator[RunCheck]:
    """One proxy and one JAX process for all checks of this file."""
    root = Path(tempfile.mkdtemp(prefix="sps"))
    flags = [f"--server_socket={root / 's'}", f"--virtual_slices={KIND},{KIND}"]
    command = [sys.executable, "-m", "tests.servers.proxy.jax_child", f"unix:{root / 's'}"]
    # Both take seconds to load, so both at once; the child connects when it has its first check.
    with (
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=REPOSITORY,
        ) as child,
        ServerProcess(MODULE, flags) as proxy,
    ):
        assert proxy.ready is not None
        assert child.stdin is not None
        assert child.stdout is not None

        def run(name: str) -> str:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write(name + "\n")
            child.stdin.flush()
            assert select.select([child.stdout], [], [], 2 * DEADLINE_S)[0], f"{name} hangs"
            failure: str = json.loads(child.stdout.readline())
            return failure

        yield run
        child.stdin.close()
        assert child.wait(DEADLINE_S) == 0
        assert proxy.stop() == 0
    shutil.rmtree(root)


@pytest.mark.parametrize("name", [*CHECKS, *COMPARED])
def test_jax(run_check: RunCheck, name: str) -> None:
    failure = run_check(name)
    assert not failure, failure
