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
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.common import write_result
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
            environment = {
                "JAX_PLATFORMS": "proxy",
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
    with tempfile.TemporaryDirectory(prefix="sps-") as directory:
        report = Path(directory, "report.xml")
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            f"--timeout={options.test_timeout}",
            f"--junitxml={report}",
            *options.pytest,
            f"tests/{file}.py",
        ]
        began = time.monotonic()
        with subprocess.Popen(
            command,
            cwd=tests,
            env={**os.environ, "JAX_NUM_GENERATED_CASES": str(options.cases), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                process.wait(options.file_timeout)
            except subprocess.TimeoutExpired:
                pass  # (What it reports is written at its end.)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        passed, failed = _read(report)
        return Run(
            passed=frozenset(passed),
            failed=failed,
            seconds=time.monotonic() - began,
            complete=report.exists() and bool(passed),
        )


def _read(report: Path) -> tuple[set[str], dict[str, str]]:
    """Reads what pytest reports in JUnit's form."""
    passed: set[str] = set()
    failed: dict[str, str] = {}
    if not report.exists():
        return passed, failed
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        if problem is not None:
            failed[name] = _first_line(problem)
        elif case.find("skipped") is None:
            passed.add(name)
    return passed, failed


def _first_line(problem: ET.Element) -> str:
    message = re.sub(r"\s+", " ", problem.get("message") or problem.text or "")
    return message[:300]


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
    for test, error in result["unexplained"].items():
        print(f"  {test}: {error}")


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
