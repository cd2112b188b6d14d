"""JAX's own test files, run directly on the CPU and through a proxy: what passes only there?

    scripts/conformance --jax-tests DIR [FILES…] [--cases 3] [--out result.json]

DIR is a checkout of JAX at the tag of the installed version, whose tests are the yardstick. Each
file runs twice in processes of its own, each time with eight devices: as it is, and with a proxy
of its own. A difference that `conformance.toml` explains is listed with its reason; any other one,
and a proxy that did not end well, makes the exit code 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import conformance_plugin as plugin
from benchmarks.common import ROOT, write_result
from tests.processes import ServerProcess

#: What an issue of this project asks for; the first is the quickest.
FILES = (
    "array_test",
    "jax_jit_test",
    "layout_test",
    "memories_test",
    "pmap_test",
    "pjit_test",
    "shard_map_test",
    "random_test",
    "lax_test",
    "lax_numpy_test",
)
DIFFERENCES = Path(__file__).with_suffix(".toml")
#: One slice of eight devices: `jax.make_mesh` refuses several slices.
SLICE = "tpuv6e:2x4"
PROXY = "shared_pathways_service.servers.proxy"
#: Processes that a file may take: one whose process dies goes on in another.
LIVES = 10
#: Tests of a file that are printed; the JSON has all.
SHOWN = 25
#: Exit codes of a proxy that ended because it was told to.
WELL = (0, 143)
DEVICES = "--xla_force_host_platform_device_count=8"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one file.

    Attributes:
      passed: Tests, as ``Class.test``.
      failed: Others that were run, with the first line of what went wrong.
      seconds: Of the whole.
      complete: Whether it came to its end.
      proxy: How the proxy ended; empty without one, and where it ended well.
    """

    passed: frozenset[str]
    failed: Mapping[str, str]
    seconds: float
    complete: bool
    proxy: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that passes on the CPU and not through the proxy, or a pattern of such.

    Attributes:
      test: ``file::Class.test``, with ``*`` and ``?``.
      reason: Why it stays, empty when nobody knows yet.
    """

    test: str
    reason: str = ""


def known_differences() -> list[Difference]:
    """Returns the differences that are explained."""
    table = tomllib.loads(DIFFERENCES.read_text())
    return [
        Difference(test=test, reason=entry["reason"])
        for entry in table.get("difference", ())
        for test in entry["tests"]
    ]


def reason_of(test: str, known: Sequence[Difference]) -> str:
    """Returns why a test need not pass; empty: there is no reason."""
    return next((d.reason for d in known if fnmatch.fnmatchcase(test, d.test)), "")


def run_directly(tests: Path, file: str, options: argparse.Namespace) -> Run:
    """Runs a file on JAX's own CPU backend."""
    return _run(tests, file, {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": DEVICES}, options)


def run_through_proxy(tests: Path, file: str, options: argparse.Namespace) -> Run:
    """Runs a file through a proxy that serves nobody else."""
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        socket = f"{directory}/s"
        flags = [f"--virtual_slices={SLICE}", f"--server_socket={socket}"]
        with ServerProcess(PROXY, flags) as proxy:
            if proxy.ready is None:
                raise RuntimeError("the proxy did not start:\n" + "\n".join(proxy.lines))
            environment = {
                "JAX_PLATFORMS": "proxy,cpu",  # as with `local_devices`: some tests want both
                "JAX_BACKEND_TARGET": f"grpc://unix:{socket}",
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
                "XLA_FLAGS": DEVICES,
            }
            run = _run(tests, file, environment, options)
            code = proxy.stop()
            end = "" if code in WELL else f"ended with {code}: {' / '.join(proxy.lines[-3:])}"
    return dataclasses.replace(run, proxy=end)


def _run(
    tests: Path, file: str, environment: Mapping[str, str], options: argparse.Namespace
) -> Run:
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
        *("-p", plugin.__name__, f"--timeout={options.test_timeout}"),
        *options.pytest,
        f"tests/{file}.py",
    ]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        results = Path(directory, "results")
        variables = {
            "JAX_NUM_GENERATED_CASES": str(options.cases),
            plugin.VARIABLE: str(results),
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        complete = False
        for _ in range(LIVES):
            until = began + options.file_timeout
            code = _run_process(command, tests, {**os.environ, **variables}, until)
            # (1: a test failed; 5: all of them were run before.)
            complete = code in {0, 1, 5}
            if complete or time.monotonic() > until:
                break
            _bury(results, f"the process died in it: {code}")
        found = plugin.read_results(results)
    failed = {name: r["error"] for name, r in found.items() if r["outcome"] in {"failed", ""}}
    return Run(
        passed=frozenset(name for name, r in found.items() if r["outcome"] == "passed"),
        failed=failed,
        seconds=time.monotonic() - began,
        complete=complete and bool(found),
    )


def _run_process(
    command: Sequence[str], tests: Path, environment: Mapping[str, str], until: float
) -> int | None:
    """Runs pytest, and ends all of it; returns its exit code, None if there was no time left."""
    with subprocess.Popen(
        command,
        cwd=tests,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _bury(results: Path, error: str) -> None:
    """Notes that the test which was running has failed, so that it is not run again."""
    running = [n for n, r in plugin.read_results(results).items() if not r["outcome"]]
    with results.open("a") as file:
        for name in running:
            file.write(json.dumps({"test": name, "outcome": "failed", "error": error}) + "\n")


def compare(file: str, direct: Run, proxied: Run, known: Sequence[Difference]) -> dict[str, Any]:
    """Returns what passes directly and not through the proxy, with the reasons there are."""
    missing = sorted(direct.passed - proxied.passed)
    unexplained = {}
    explained = {}
    for test in missing:
        if reason := reason_of(f"{file}::{test}", known):
            explained[test] = reason
        else:
            unexplained[test] = proxied.failed.get(test, "it was not run to its end, or skipped")
    return {
        "direct": len(direct.passed),
        "proxy": len(direct.passed) - len(missing),
        "share": round(1 - len(missing) / max(1, len(direct.passed)), 4),
        "direct_s": round(direct.seconds, 1),
        "proxy_s": round(proxied.seconds, 1),
        "complete": direct.complete and proxied.complete,
        "proxy_end": proxied.proxy,
        "explained": explained,
        "unexplained": unexplained,
    }


def show(file: str, result: Mapping[str, Any]) -> None:
    """Prints one file's result."""
    print(
        f"{file:20} {result['direct']:5} on the CPU, {result['proxy']:5} through the proxy "
        f"({result['share']:.2%}); {result['direct_s']:.0f} s and {result['proxy_s']:.0f} s",
        flush=True,
    )
    if result["proxy_end"]:
        print(f"  the proxy {result['proxy_end']}")
    if not result["complete"]:
        print("  not run to the end")
    for test, reason in result["explained"].items():
        print(f"  known: {test}: {reason}")
    for test, error in list(result["unexplained"].items())[:SHOWN]:
        print(f"  {test}: {error}")
    if (more := len(result["unexplained"]) - SHOWN) > 0:
        print(f"  and {more} more")


def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jax-tests", type=Path, required=True, help="a checkout of JAX")
    parser.add_argument("files", nargs="*", default=FILES, help="e.g. array_test")
    parser.add_argument("--cases", type=int, default=3, help="JAX_NUM_GENERATED_CASES")
    parser.add_argument("--test-timeout", type=int, default=120, help="seconds a test")
    parser.add_argument("--file-timeout", type=int, default=3600, help="seconds a file")
    parser.add_argument("--pytest", action="append", default=[], help="e.g. --pytest=-kdonat")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if not (options.jax_tests / "tests" / "array_test.py").exists():
        parser.error(f"--jax-tests {options.jax_tests}: there is no tests/array_test.py in it")
    known = known_differences()
    results = {}
    for name in options.files:
        file = Path(name).stem
        # At the same time: half the wait.
        with ThreadPoolExecutor(2) as threads:
            direct = threads.submit(run_directly, options.jax_tests, file, options)
            proxied = threads.submit(run_through_proxy, options.jax_tests, file, options)
        results[file] = compare(file, direct.result(), proxied.result(), known)
        show(file, results[file])
    write_result("conformance", results, options.out)
    return int(
        any(r["unexplained"] or r["proxy_end"] or not r["complete"] for r in results.values())
    )


if __name__ == "__main__":
    sys.exit(main())
