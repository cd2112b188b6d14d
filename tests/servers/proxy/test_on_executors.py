"""The tests of proxies on executors: a few of those that `harness.proxy.on_executors` can run."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY

EXPLAINED = tomllib.loads((REPOSITORY / "harness/proxy/on_executors.toml").read_text())
#: In a process of JAX, two checks, of which executors refuse the second one; and in that of pytest.
TESTS = (
    "tests/servers/proxy/jax/test_jax.py::test_jax[sharded_jit]",
    "tests/servers/proxy/jax/test_jax.py::test_jax[host_callbacks]",
    "tests/servers/proxy/session/test_memory_limit.py::test_programs_beyond_the_limit",
)


def test_results_and_limits_are_those_of_the_local_engine() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "harness.proxy.on_executors", *TESTS],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        timeout=deadline(300.0),
        check=False,
    )
    assert done.returncode == 0, done.stdout
    # (What is refused was expected to fail.)
    assert "2 passed, 1 xfailed" in done.stdout


@pytest.mark.parametrize("pattern", [p for d in EXPLAINED["difference"] for p in d["tests"]])
def test_an_explained_test_exists(pattern: str) -> None:
    file, _, name = pattern.partition("::")
    # (What follows is the name of a parameter.)
    function = name.partition("?")[0]
    functions = re.findall(r"^def (test_\w+)\(", (REPOSITORY / file).read_text(), re.MULTILINE)
    assert fnmatch.filter(functions, function)
