"""A home on a file system that refuses locks, as of a network without a lock server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.embedded import KIND, embedded, nothing_left
from harness.programs import program, sps
from tests.runtime.no_locks import PREFIX

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux' filters of system calls")

CLIENT = """
try:
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
        import jax.numpy as jnp
        say("serving", value=float(jnp.ones(3).sum()))
    say("left")
except errors.SharedPathwaysError as error:
    say("failed", error=error.to_json())
"""

TRAINING = """
import logging
from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
lines = []
class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())
logging.getLogger("shared_pathways_service").addHandler(Lines())
with Checkpoints(os.environ["TEST_DIRECTORY"]) as checkpoints:
    say("saving", lines=lines)
"""

SUM = "import jax.numpy as jnp; print('sum', jnp.arange(4.0).sum(), flush=True)"
#: Python imports it at its start: no file below the directories in TEST_NO_LOCKS can be locked.
PARTLY = """
import errno, fcntl, os
refused, original = os.environ["TEST_NO_LOCKS"].split(os.pathsep), fcntl.flock
def flock(file, operation):
    number = file if isinstance(file, int) else file.fileno()
    if os.readlink(f"/proc/self/fd/{number}").startswith(tuple(refused)):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
    original(file, operation)
fcntl.flock = flock
"""


# (Programs with the prefix are started anew: a process that is forked by a server has no filter.)
def test_a_client_without_locks_uses_a_service() -> None:
    with embedded(1):
        with program(CLIENT, prefix=PREFIX) as running:
            assert running.expect("serving")["value"] == 3.0
            running.expect("left")
            assert running.wait() == 0
        assert nothing_left()


def test_a_service_cannot_be_started_without_locks(own_directories: Path) -> None:
    with program(CLIENT, prefix=PREFIX) as running:
        error = running.expect("failed")["error"]
        assert running.wait() == 0
    runtime = own_directories / "r"
    assert error["type"] == "PreflightError"
    assert f"cannot lock files in {runtime}: No locks available" in error["message"]
    assert "set SPS_RUNTIME_DIR to a directory on a file system that has locks" in error["hint"]
    assert not list((own_directories / "s" / "journal").iterdir())


def test_checkpoints_are_saved_without_locks(own_directories: Path) -> None:
    directory = own_directories / "run"
    with program(TRAINING, prefix=PREFIX, env={"TEST_DIRECTORY": str(directory)}) as running:
        [line] = running.expect("saving")["lines"]
        assert running.wait() == 0
    assert f"{directory} cannot be locked (No locks available)" in line


def test_a_service_whose_home_has_no_locks(
    own_directories: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual case: a home on NFS or Lustre, and a local directory for sockets."""
    state, cache = own_directories / "s", own_directories / "c"
    (tmp_path / "sitecustomize.py").write_text(PARTLY)
    monkeypatch.setenv("TEST_NO_LOCKS", f"{state}/{os.pathsep}{cache}/")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with embedded(1):
        words = ("submit", "--name=sums", f"--slices={KIND}=1", "--", sys.executable, "-c", SUM)
        for _ in range(2):  # the second one replaces the first
            sps(*words)
            sps("wait", "sums")
            assert "sum 6.0" in sps("logs", "sums").stdout
        assert nothing_left()
    [log, *_] = [path for path in state.rglob("*.log") if "sums" in path.name]
    compiled = cache / "compiled"
    why = f"Compiled programs are not cached: [Errno 37] No locks available: '{compiled}'"
    assert why in log.read_text()
    assert not list(compiled.iterdir())
