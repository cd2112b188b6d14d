"""Runs a test file of JAX's in processes of its own, directly or through a proxy, to its end.

What ends a process ends one test only: the next process goes on behind it. A test that blocks
where no timeout of its own reaches it is ended with its process likewise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import conformance_plugin as plugin
from benchmarks.common import ROOT
from shared_pathways_service.jaxside import standalone
from tests.processes import ServerProcess

__all__ = ["Run", "Settings", "run_directly", "run_through_proxy"]

#: One slice of eight devices: `jax.make_mesh` refuses several slices.
SLICE = "tpuv6e:2x4"
PROXY = "shared_pathways_service.servers.proxy"
#: Processes that a file may take.
LIVES = 10
#: A test that takes so many times its time hangs where pytest cannot end it.
PATIENCE = 2
#: Exit codes of a proxy that ended because it was told to.
WELL = (0, 143)
#: Exit codes of pytest with nothing wrong but tests: all passed, some failed, none was left to run.
RAN = (0, 1, 5)
#: Exit codes of pytest that another process would end with too.
REFUSED = (2, 3, 4)
DEVICES = "--xla_force_host_platform_device_count=8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How files are run.

    Attributes:
      jax: A checkout of JAX; the files are in its `tests`.
      cases: JAX_NUM_GENERATED_CASES.
      test_timeout: Seconds that a test may take.
      file_timeout: Seconds that a file may take; what is not reached by then is not run.
      pytest: More arguments for pytest.
    """

    jax: Path
    cases: int
    test_timeout: int
    file_timeout: int
    pytest: Sequence[str] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one file.

    Attributes:
      collected: All tests that the file has, as ``Class.test``, in its order.
      passed: Those that passed.
      failed: Those that did not, with the first line of what went wrong.
      skipped: Those that passed themselves over.
      seconds: Of the whole.
      broken: What kept it from its end other than time; empty if nothing did.
      proxy: How the proxy ended; empty without one, and where it ended well.
    """

    collected: tuple[str, ...]
    passed: frozenset[str]
    failed: Mapping[str, str]
    skipped: frozenset[str]
    seconds: float
    broken: str = ""
    proxy: str = ""

    @property
    def not_reached(self) -> tuple[str, ...]:
        """Those that there was no time for, in the file's order."""
        reached = self.passed | self.skipped | self.failed.keys()
        return tuple(test for test in self.collected if test not in reached)


def run_directly(file: str, settings: Settings) -> Run:
    """Runs a file on JAX's own CPU backend."""
    return _run(file, settings, (), {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": DEVICES})


def run_through_proxy(file: str, settings: Settings, only: Sequence[str] = ()) -> Run:
    """Runs a file, or some tests of it, through a proxy that serves nobody else."""
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        socket = f"{directory}/s"
        flags = [f"--virtual_slices={SLICE}", f"--server_socket={socket}"]
        with ServerProcess(PROXY, flags) as proxy:
            if proxy.ready is None:
                raise RuntimeError("the proxy did not start:\n" + "\n".join(proxy.lines))
            environment = {
                "JAX_PLATFORMS": "proxy,cpu",  # as with `local_devices`: some tests want both
                # What JAX's tests choose by, where the platform `proxy` would pass them over.
                plugin.DEVICE_VARIABLE: "cpu",
                "JAX_BACKEND_TARGET": f"grpc://unix:{socket}",
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
                "XLA_FLAGS": DEVICES,
                "PYTHONPATH": f"{standalone.place(Path(directory))}{os.pathsep}{ROOT}",
            }
            run = _run(file, settings, only, environment)
            code = proxy.stop()
            end = "" if code in WELL else f"ended with {code}: {' / '.join(proxy.lines[-3:])}"
    return dataclasses.replace(run, proxy=end)


def _run(file: str, settings: Settings, only: Sequence[str], environment: Mapping[str, str]) -> Run:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        results = Path(directory, "results")
        plugin.choice(results).write_text(json.dumps(list(only)))
        variables = {
            **os.environ,
            "JAX_NUM_GENERATED_CASES": str(settings.cases),
            plugin.VARIABLE: str(results),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        broken = _run_to_the_end(file, settings, variables, results)
        found = plugin.read_results(results)
        collected = plugin.read_collected(results)

    def having(outcome: str) -> frozenset[str]:
        return frozenset(test for test, r in found.items() if r["outcome"] == outcome)

    return Run(
        collected=collected,
        passed=having("passed"),
        failed={test: found[test]["error"] for test in having("failed")},
        skipped=having("skipped"),
        seconds=time.monotonic() - began,
        broken=broken or ("" if collected else "no test was found in its time"),
    )


def _run_to_the_end(
    file: str, settings: Settings, variables: Mapping[str, str], results: Path
) -> str:
    """Starts processes until every test was run or time is over; returns what else went wrong."""
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-p", plugin.__name__, f"--timeout={settings.test_timeout}"),
        *settings.pytest,
        f"tests/{file}.py",
    ]
    until = time.monotonic() + settings.file_timeout
    died = ""
    for _ in range(LIVES):
        with subprocess.Popen(
            command,
            cwd=settings.jax,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                code = _wait(process, results, until, PATIENCE * settings.test_timeout)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if code in RAN or time.monotonic() >= until:
            return ""
        died = "it hung" if code is None else f"its process ended with {code}"
        if code in REFUSED or not _bury(results, died):
            return died
    return f"{LIVES} times: {died}"


def _wait(
    process: subprocess.Popen[bytes], results: Path, until: float, patience_s: float
) -> int | None:
    """Returns the process's exit code; None if its time is over or one test takes too long."""
    while True:
        left = min(until - time.monotonic(), patience_s - _in_one_test_s(results))
        if left <= 0:
            return None
        try:
            return process.wait(left)
        except subprocess.TimeoutExpired:
            continue


def _in_one_test_s(results: Path) -> float:
    """Returns for how long a test has been running; 0 while none is."""
    return time.time() - results.stat().st_mtime if _running(results) else 0.0


def _running(results: Path) -> list[str]:
    return [test for test, r in plugin.read_results(results).items() if not r["outcome"]]


def _bury(results: Path, error: str) -> bool:
    """Notes that the test which was running has failed, so that it is not run again."""
    running = _running(results)
    for test in running:
        plugin.keep(results, test, "failed", error)
    return bool(running)
