"""Every test gets directories of its own, and fails when it leaves a thread or a process behind."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.deadlines import left_after
from harness.layers.roles import runs_tests

#: Bears a test's own value in its environment and so in that of every process it starts, however
#: detached: what still bears it when the test has ended was left behind.
MARK = "SPS_TEST_MARK"
_SHARED = Path("/dev/shm")
_HAS_PROC = Path("/proc/self/environ").exists()
#: Seconds that what was told to end may take to do so.
_ENDING_S = 20.0

#: Fixtures that several directories of tests use.
pytest_plugins = (
    "harness.fork_server.plugin",
    "harness.layers.plugin",
    "harness.layers.time_limits",
    "harness.layers.timer_slack",
    "harness.suite.recorder",
    "harness.testbed.programs",
    "harness.testbed.plugin",
    "tests.hypothesis_profiles",
)

# Behind a shell's `&` or `nohup` they are ignored, and the programs that tests signal inherit that.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def pytest_sessionstart(session: pytest.Session) -> None:
    # What a collection of tests creates stays: looking for garbage among it only takes time.
    if runs_tests(session.config):
        gc.disable()


def pytest_collection_finish() -> None:
    # What was imported stays. Many tests collect garbage, and each time it would be gone through.
    gc.collect()
    gc.freeze()
    gc.enable()


@contextlib.contextmanager
def private_directories(patch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Makes private runtime, state, cache and configuration places, and removes them at the end."""
    # Short and lower case: sockets live in it, and JAX lower-cases their paths.
    root = Path(tempfile.mkdtemp(prefix="sps-"))
    for name in ("RUNTIME", "STATE", "CACHE"):
        patch.setenv(f"SPS_{name}_DIR", str(root / name.lower()[:1]))
    shared = Path(tempfile.mkdtemp(prefix="sps-", dir=_SHARED if _SHARED.is_dir() else root))
    patch.setenv("SPS_SHARED_MEMORY_DIR", str(shared))
    patch.setenv("SPS_CONFIG", str(root / "config.toml"))
    for name in ("SPS_PROFILE", "JAX_PLATFORMS", "JAX_BACKEND_TARGET", "SPS_TOKEN_FILE"):
        patch.delenv(name, raising=False)
    try:
        yield root
    finally:
        for directory in (shared, root):
            shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(autouse=True)
def own_directories(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Gives the test private directories."""
    with private_directories(monkeypatch) as root:
        yield root


@pytest.fixture(autouse=True)
def leaves_nothing_behind(
    own_directories: Path,  # first in, last out: processes may still use them
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[None]:
    """Fails the test when threads or processes that it started outlive it."""
    with nothing_left_behind(monkeypatch):
        yield


@contextlib.contextmanager
def nothing_left_behind(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when threads or processes that the block started outlive it."""
    mark = uuid.uuid4().hex
    patch.setenv(MARK, mark)
    threads = set(threading.enumerate())
    yield
    left = left_after(lambda: [t for t in threading.enumerate() if _is_left(t, threads)], _ENDING_S)
    assert not left, f"threads left behind: {left}"
    processes = left_after(lambda: _marked(mark), _ENDING_S)
    described = [_describe(p) for p in processes]
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.kill()
    assert not described, f"processes left behind: {described}"


def _is_left(thread: threading.Thread, before: set[threading.Thread]) -> bool:
    # grpc.aio has one poller in a process. grpcio (1.85) does not end it where the completion of a
    # cancelled call comes after its event loop was closed.
    if thread in before or thread.name.endswith("(_poll_wrapper)"):
        return False
    # Python before 3.12 lists threads of others, such as XLA's, for ever once they have run Python.
    return not isinstance(thread, threading._DummyThread)


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for pid in psutil.pids():
        if pid == os.getpid() or not _may_have(pid, mark):
            continue
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _may_have(pid: int, mark: str) -> bool:
    """Whether a process may have a mark, found out quickly: most have not."""
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return not _HAS_PROC


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid}: {' '.join(process.cmdline())}"
    except psutil.Error:
        return f"{process.pid}: gone meanwhile"
