"""Runs a part of a test suite in its own processes, directly or through a proxy, to its end.

A test that ends its process ends no other test: the next process continues after it. A test that
blocks where pytest's timeout does not reach it is ended with its process likewise.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import plugin
from harness.processes import ServerProcess
from harness.proxy.executors import running_executors
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.jax_client import standalone

__all__ = ["Run", "Settings", "run_directly", "run_on_executors", "run_through_proxy"]

#: A slice for each number of devices: `jax.make_mesh` refuses several slices.
SLICES = {1: "tpuv6e:1x1", 2: "tpuv6e:1x2", 4: "tpuv6e:2x2", 8: "tpuv6e:2x4"}
PROXY = "shared_pathways_service.servers.proxy"
#: Processes that a part may take.
LIVES = 10
#: A test that takes this multiple of its timeout hangs where pytest cannot end it.
PATIENCE = 2
#: Exit codes of a proxy after a stop signal.
WELL = (0, 143)
#: Exit codes of a complete run of pytest: all passed, some failed, no test was left to run.
RAN = (0, 1, 5)
#: Exit codes of pytest that another process would end with too.
REFUSED = (2, 3, 4)
#: As which pytest loads the plug-in.
PLUGIN = "sps_conformance_plugin"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How a part of a suite is run.

    Attributes:
      directory: Where pytest runs, inside the suite's checkout.
      tests: What pytest is given: files and directories in there, and options.
      devices: How many devices there are; without `slices` a key of `SLICES`.
      test_timeout: Seconds that a test may take.
      timeout: Seconds that all may take; tests that are not reached by then are not run.
      first: The test from which on tests are run; empty: all are.
      environment: More variables for the tests.
      jax_settings: Of `jax.config`, by name.
      python: The interpreter of the tests.
      slices: The proxy's; empty: one with all devices.
    """

    directory: Path
    tests: Sequence[str]
    devices: int
    test_timeout: int
    timeout: int
    first: str = ""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    jax_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    python: Path = Path(sys.executable)
    slices: Sequence[str] = ()

    @property
    def proxys_slices(self) -> Sequence[str]:
        """The types of the proxy's slices."""
        return self.slices or [SLICES[self.devices]]

    @property
    def xla_flags(self) -> str:
        """How many devices the local CPU has."""
        return f"--xla_force_host_platform_device_count={self.devices}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one part.

    Attributes:
      collected: All tests that there are, as pytest names them, in their order.
      passed: Those that passed.
      failed: Those that did not, with the first line of what went wrong.
      skipped: Those that passed themselves over.
      seconds: Of the whole.
      broken: Why it did not reach its end, other than for lack of time; empty if it did.
      proxy: How the proxy ended; empty without one, and where it ended well.
      backend: JAX's default backend at the end; empty if the tests do not import JAX.
    """

    collected: tuple[str, ...]
    passed: frozenset[str]
    failed: Mapping[str, str]
    skipped: frozenset[str]
    seconds: float
    broken: str = ""
    proxy: str = ""
    backend: str = ""

    @property
    def not_reached(self) -> tuple[str, ...]:
        """Those that there was no time for, in their order."""
        reached = self.passed | self.skipped | self.failed.keys()
        return tuple(test for test in self.collected if test not in reached)


def run_directly(settings: Settings) -> Run:
    """Runs a part on JAX's own CPU backend."""
    return _run(settings, (), {"JAX_PLATFORMS": "cpu"}, ())


def run_on_executors(settings: Settings, only: Sequence[str] = ()) -> Run:
    """Runs a part, or some tests of it, through a proxy with an executor for each host."""
    hosts = [
        (f"--instance_type={name}", f"--host_index={host}")
        for name in settings.proxys_slices
        for host in range(InstanceType.parse(name).hosts)
    ]
    with running_executors(*hosts) as running:
        return run_through_proxy(settings, only, running.proxys_flags)


def run_through_proxy(
    settings: Settings, only: Sequence[str] = (), proxys_flags: Sequence[str] = ()
) -> Run:
    """Runs a part, or some tests of it, through a proxy of their own."""
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        socket = f"{directory}/s"
        slices = ",".join(settings.proxys_slices)
        flags = [f"--virtual_slices={slices}", f"--server_socket={socket}", *proxys_flags]
        with ServerProcess(PROXY, flags) as proxy:
            if proxy.ready is None:
                raise RuntimeError("the proxy did not start:\n" + "\n".join(proxy.lines))
            environment = {
                "JAX_PLATFORMS": "proxy,cpu",  # as with `local_devices`: some tests want both
                plugin.PROXY_VARIABLE: "1",
                "JAX_BACKEND_TARGET": f"grpc://unix:{socket}",
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
            }
            run = _run(settings, only, environment, [str(standalone.place(Path(directory)))])
            code = proxy.stop()
            end = "" if code in WELL else f"ended with {code}: {' / '.join(proxy.lines[-3:])}"
    return dataclasses.replace(run, proxy=end)


def _run(
    settings: Settings, only: Sequence[str], environment: Mapping[str, str], paths: Sequence[str]
) -> Run:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        results = Path(directory, "results")
        plugin.choose(results, only, settings.first)
        shutil.copy(str(plugin.__file__), Path(directory, f"{PLUGIN}.py"))
        variables = {
            **os.environ,
            **settings.environment,
            plugin.VARIABLE: str(results),
            plugin.SETTINGS_VARIABLE: json.dumps(dict(settings.jax_settings)),
            "PYTHONPATH": os.pathsep.join([directory, *paths]),
            "XLA_FLAGS": settings.xla_flags,
            "TEST_TMPDIR": directory,  # absl's: both runs would share it
            **environment,
        }
        broken = _run_to_the_end(settings, variables, results)
        found = plugin.read_results(results)
        collected = plugin.read_collected(results)
        backend = plugin.backend(results)
        default = backend.read_text() if backend.exists() else ""

    def having(outcome: str) -> frozenset[str]:
        return frozenset(test for test, r in found.items() if r["outcome"] == outcome)

    return Run(
        collected=collected,
        passed=having("passed"),
        failed={test: found[test]["error"] for test in having("failed")},
        skipped=having("skipped"),
        seconds=time.monotonic() - began,
        broken=broken or ("" if collected else "no test was found in its time"),
        backend=default,
    )


def _run_to_the_end(settings: Settings, variables: Mapping[str, str], results: Path) -> str:
    """Starts processes until every test was run or time is over; returns what else went wrong."""
    command = [
        *(str(settings.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", PLUGIN),
        *(f"--timeout={settings.test_timeout}", "--continue-on-collection-errors"),
        *settings.tests,
    ]
    until = time.monotonic() + settings.timeout
    died = ""
    for _ in range(LIVES):
        with subprocess.Popen(
            command,
            cwd=settings.directory,
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
    """Returns for how many seconds the current test has been running; 0 without one."""
    return time.time() - results.stat().st_mtime if _running(results) else 0.0


def _running(results: Path) -> list[str]:
    return [test for test, r in plugin.read_results(results).items() if not r["outcome"]]


def _bury(results: Path, error: str) -> bool:
    """Notes that the test which was running has failed, so that it is not run again."""
    running = _running(results)
    for test in running:
        plugin.keep(results, test, "failed", error)
    return bool(running)
