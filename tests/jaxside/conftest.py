"""Real proxies that the tests of one worker share, and programs that attach JAX to them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
#: Generous: a loaded machine of two cores.
DEADLINE_S = 90.0
TOKEN = "a-token-of-this-tenant"

PRELUDE = """
import gc, os, sys, threading, time
import numpy as np
from shared_pathways_service.jaxside import ProxyTarget, attach

def wait_until(true, what):
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)

def snapshot():
    import jax
    from jax._src import xla_bridge
    return {
        "environment": dict(os.environ),
        "settings": dict(jax.config.values),
        "factories": dict(xla_bridge._backend_factories),
        "register": (xla_bridge.register_backend_factory,
                     __import__("jax.extend.backend").extend.backend.register_backend_factory),
        "backends": dict(xla_bridge._backends),
    }

def connecting():
    return [t for t in threading.enumerate() if t.name == "sps-proxy-connect"]
"""


@dataclasses.dataclass(frozen=True)
class Proxy:
    """A proxy that runs."""

    address: str
    pid: int
    token: str | None = None
    token_file: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """What `PRELUDE` and JAX need."""
        return {"ADDRESS": self.address}


@contextlib.contextmanager
def run_proxy(
    directory: Path, name: str, *, slices: int, token: str | None = None
) -> Iterator[Proxy]:
    socket = directory / f"{name}.sock"
    reader, writer = os.pipe()
    token_file = directory / f"{name}.token"
    flags = [
        f"--virtual_slices={','.join(['tpuv6e:2x2'] * slices)}",
        f"--server_socket={socket}",
        f"--ready_fd={writer}",
        f"--parent_pid={os.getpid()}",
    ]
    if token is not None:
        token_file.touch(mode=0o600)
        token_file.write_text(token)
        flags.append(f"--token_file={token_file}")
    log = directory / f"{name}.log"
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "SPS_"))
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "shared_pathways_service.servers.proxy", *flags],
            cwd=REPOSITORY,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=(writer,),
        )
    os.close(writer)
    try:
        told, _, _ = select.select([reader], [], [], DEADLINE_S)
        assert told, f"{name} does not serve: {log.read_text()}"
        assert os.read(reader, 4096), f"{name} ended: {log.read_text()}"
        yield Proxy(f"unix:{socket}", process.pid, token, token_file if token else None)
    finally:
        os.close(reader)
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def proxies() -> Iterator[tuple[Proxy, Proxy]]:
    """Two slices for everybody, and one slice for who has the token."""
    directory = Path(tempfile.mkdtemp(prefix="sps-"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        yield (
            undo.enter_context(run_proxy(directory, "a", slices=2)),
            undo.enter_context(run_proxy(directory, "b", slices=1, token=TOKEN)),
        )


def start_program(
    source: str,
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path = REPOSITORY,
) -> subprocess.Popen[str]:
    """Starts a Python program in a clean environment of JAX; None removes a variable."""
    merged = {**os.environ, "JAX_PLATFORMS": None, "PYTHONPATH": str(REPOSITORY), **(env or {})}
    return subprocess.Popen(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(source), *arguments],
        cwd=cwd,
        env={name: value for name, value in merged.items() if value is not None},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_program(
    source: str,
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path = REPOSITORY,
    code: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, which must have this exit code."""
    with start_program(source, *arguments, env=env, cwd=cwd) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"did not end; it wrote {out} and {err}") from None
    assert process.returncode == code, f"ended with {process.returncode}: {out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
