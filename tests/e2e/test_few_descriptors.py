"""`ulimit -n`: too few descriptors are an error before anything starts, naming what would do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness.embedded import shut_down
from harness.processes import DEADLINE_S as START_S
from harness.processes import KIND, REPOSITORY
from shared_pathways_service.runtime.descriptors import NEEDED
from shared_pathways_service.runtime.settings import Settings

CONNECT = f"""
import os, resource
from shared_pathways_service import errors, isc_pathways
kept = []
for _ in range(OPEN):
    kept.append(os.open(os.devnull, os.O_RDONLY))
try:
    with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}):
        import jax.numpy as jnp
        print("sum", float(jnp.ones(3).sum()), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except errors.PreflightError as error:
    print(type(error).__name__, error)
"""


#: What a program has open from its start on counts, and a fork has more.
real_starts = pytest.mark.real_starts


def limited(soft: int, hard: int, module: list[str]) -> subprocess.CompletedProcess[str]:
    limit = (
        "import resource, os, sys; resource.setrlimit(resource.RLIMIT_NOFILE, "
        f"({soft}, {hard})); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    return subprocess.run(
        [sys.executable, "-c", limit, *module],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )


def connect(*, soft: int, hard: int, opened: int = 0) -> str:
    done = limited(soft, hard, ["-c", CONNECT.replace("OPEN", str(opened))])
    assert done.returncode == 0, done.stderr
    return done.stdout


def nothing_started() -> bool:
    settings = Settings.load()
    return not (settings.state_dir / "agents").exists() and not settings.runtime_dir.exists()


@real_starts
def test_connect_names_a_hard_limit_that_is_too_low() -> None:
    said = connect(soft=64, hard=64)
    assert said.startswith("PreflightError a process may open 64 files (the hard limit RLIM")
    assert f"need at least {NEEDED}" in said
    assert "`ulimit -n 4096`" in said
    assert nothing_started()


@real_starts
def test_connect_counts_the_files_that_are_open() -> None:
    said = connect(soft=300, hard=4096, opened=280)
    assert "of at most 300 files open (RLIMIT_NOFILE)" in said
    assert "`ulimit -n 4096`" in said
    assert nothing_started()


@pytest.mark.parametrize(
    "starts",
    ["forked", pytest.param("real", marks=[pytest.mark.thorough, pytest.mark.real_starts])],
)
def test_a_low_soft_limit_is_raised_for_the_service_and_left_as_it_is_for_the_program(
    starts: str,
) -> None:
    del starts  # the marks of each say how processes start
    # (The program limits itself once it runs, and with itself the ten processes of its service.)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 4096))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", limit + CONNECT.replace("OPEN", "0")],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            timeout=3 * START_S,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "sum 3.0 64\n"), done.stderr
    finally:
        shut_down()


@real_starts
@pytest.mark.parametrize(
    "server",
    [
        ["cli", "serve", f"--slices={KIND}=1"],
        ["servers.supervisor", f"--slices={KIND}=1"],
        [
            "servers.resource_manager",
            "--node_type=resource_manager",
            "--server_port=0",
            f"--instance_type={KIND}",
            "--instance_count=1",
        ],
    ],
    ids=lambda server: server[0],
)
def test_a_service_does_not_start_where_it_could_not_serve(server: list[str]) -> None:
    module, *arguments = server
    done = limited(64, 64, ["-m", f"shared_pathways_service.{module}", *arguments])
    assert done.returncode == 1
    assert "64 files" in done.stderr
    assert "RLIMIT_NOFILE" in done.stderr
    assert "`ulimit -n 4096`" in done.stderr


@real_starts
def test_doctor_checks_the_limit() -> None:
    doctor = ["-m", "shared_pathways_service.cli", "doctor"]
    failed = limited(64, 64, doctor)
    assert failed.returncode != 0
    assert "open files" in failed.stdout
    assert "`ulimit -n 4096`" in failed.stdout
    warned = limited(128, 4096, doctor)
    assert warned.returncode == 0
    assert "a program may have only 128 files open" in " ".join(warned.stdout.split())
