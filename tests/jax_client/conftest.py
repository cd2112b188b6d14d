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

from harness.deadlines import deadline
from harness.foreign import environment_without_us

REPOSITORY = Path(__file__).parents[2]
#: Generous: a loaded machine of two cores.
DEADLINE_S = deadline(90.0)
TOKEN = "a-token-of-this-tenant"

#: Remembers the variable for gRPC's credentials as it is while JAX's client is created.
CREATING = """
import os
from jax.extend.backend import ifrt_proxy
variable = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
before = os.environ.get(variable)
create, seen = ifrt_proxy.get_client, set()
def creating(*args):
    seen.add(os.environ.get(variable))
    return create(*args)
ifrt_proxy.get_client = creating
"""

PRELUDE = """
import functools, gc, os, sys, threading, time
import numpy as np
from harness import deadlines
from harness.deadlines import deadline
from shared_pathways_service.jax_client import ProxyTarget, attach

wait_until = functools.partial(deadlines.wait_until, seconds=30.0)

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


@dataclasses.dataclass(frozen=True)
class StartedProxy:
    """A proxy that was started and may not serve yet."""

    _proxy: Proxy
    _reader: int
    _log: Path

    def serving(self) -> Proxy:
        """Waits until it serves."""
        told, _, _ = select.select([self._reader], [], [], DEADLINE_S)
        assert told, f"it does not serve: {self._log.read_text()}"
        assert os.read(self._reader, 4096), f"it ended: {self._log.read_text()}"
        return self._proxy


@contextlib.contextmanager
def start_proxy(
    directory: Path, name: str, *, slices: int, token: str | None = None
) -> Iterator[StartedProxy]:
    """Runs a proxy for the length of the block, which need not wait for it."""
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
        yield StartedProxy(
            Proxy(f"unix:{socket}", process.pid, token, token_file if token else None), reader, log
        )
    finally:
        os.close(reader)
        process.terminate()
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def run_proxy(directory: Path, name: str, *, slices: int) -> Iterator[Proxy]:
    """Runs a proxy for the length of the block."""
    with start_proxy(directory, name, slices=slices) as started:
        yield started.serving()


@pytest.fixture(scope="session")
def foreign_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment that does not have this package."""
    return environment_without_us(tmp_path_factory.mktemp("foreign") / "venv")


@pytest.fixture(scope="session")
def proxies() -> Iterator[tuple[Proxy, Proxy]]:
    """Two slices for everybody, and one slice for who has the token."""
    directory = Path(tempfile.mkdtemp(prefix="sps-"))
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        first = undo.enter_context(start_proxy(directory, "a", slices=2))
        second = undo.enter_context(start_proxy(directory, "b", slices=1, token=TOKEN))
        yield first.serving(), second.serving()


def start_program(
    source: str,
    *arguments: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path = REPOSITORY,
    python: str = sys.executable,
) -> subprocess.Popen[str]:
    """Starts a Python program in a clean environment of JAX; None removes a variable."""
    merged = {**os.environ, "JAX_PLATFORMS": None, "PYTHONPATH": str(REPOSITORY), **(env or {})}
    return subprocess.Popen(
        [python, "-W", "error::ResourceWarning", "-c", textwrap.dedent(source), *arguments],
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
    python: str = sys.executable,
    code: int = 0,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program to its end, which must have this exit code."""
    with start_program(source, *arguments, env=env, cwd=cwd, python=python) as process:
        try:
            out, err = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"did not end; it wrote {out} and {err}") from None
    assert process.returncode == code, f"ended with {process.returncode}: {out}\n{err}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


Proxies = tuple[Proxy, Proxy]
