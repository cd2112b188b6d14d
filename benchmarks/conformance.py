"""JAX's own test files, run directly on the CPU and through a proxy: what passes only there?

    scripts/conformance --jax-tests DIR [FILES…] [--cases 3] [--out result.json]

DIR is a checkout of JAX at the tag of the installed version, whose tests are the yardstick. Each
file runs twice in processes of its own, each time with eight devices: as it is, and with a proxy
of its own. What passes only directly is run once more, alone, through another proxy: a test that
passes then was slow or unlucky, and is listed as such. A difference that `conformance.toml`
explains is listed with its reason; any other one, and a proxy that did not end well, makes the
exit code 1. What a file's time did not reach is compared with nothing, and counted.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.common import write_result
from benchmarks.conformance_runs import Run, Settings, run_directly, run_through_proxy

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
#: Tests of a file that are printed; the JSON has all.
SHOWN = 25
#: Tests of a file that are run once more, at most: where more differ, no single test is the matter.
AGAIN = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A test that passes on the CPU and not through the proxy, or a pattern of such.

    Attributes:
      test: ``file::Class.test``, with ``*`` and ``?``.
      reason: Why it stays.
    """

    test: str
    reason: str


def known_differences(path: Path) -> list[Difference]:
    """Returns the differences that are explained."""
    table = tomllib.loads(path.read_text())
    return [
        Difference(test=test, reason=entry["reason"])
        for entry in table.get("difference", ())
        for test in entry["tests"]
    ]


def reason_of(test: str, known: Sequence[Difference]) -> str:
    """Returns why a test need not pass; empty: there is no reason."""
    return next((d.reason for d in known if fnmatch.fnmatchcase(test, d.test)), "")


def differences(direct: Run, proxied: Run) -> dict[str, str]:
    """Returns what passes directly and not through the proxy, with what went wrong there.

    A test for which there was no time through the proxy is none of them.
    """
    missing = direct.passed - proxied.passed - frozenset(proxied.not_reached)
    return {test: proxied.failed.get(test) or _without_error(test, proxied) for test in
            sorted(missing)}  # fmt: skip


def _without_error(test: str, run: Run) -> str:
    if test in run.failed:
        return "it failed"
    return "it was skipped" if test in run.skipped else "there is no such test"


def explain(
    file: str, errors: Mapping[str, str], known: Sequence[Difference]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the reasons of those tests that have one, and the errors of the others."""
    explained = {test: reason for test in errors if (reason := reason_of(f"{file}::{test}", known))}
    return explained, {test: error for test, error in errors.items() if test not in explained}


def run_file(file: str, settings: Settings, known: Sequence[Difference]) -> dict[str, Any]:
    """Runs a file both ways; returns what is printed and kept of it."""
    # At the same time: half the wait.
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(run_directly, file, settings)
        proxied = run_through_proxy(file, settings)
        direct = running.result()
    missing = differences(direct, proxied)
    explained, unexplained = explain(file, missing, known)
    alone: dict[str, str] = {}
    if 0 < len(unexplained) <= AGAIN:
        again = run_through_proxy(file, settings, sorted(unexplained))
        alone = {test: error for test, error in unexplained.items() if test in again.passed}
        proxied = dataclasses.replace(proxied, proxy=proxied.proxy or again.proxy)
    compared = len(direct.passed - frozenset(proxied.not_reached))
    passed = compared - len(missing) + len(alone)
    return {
        "cases": settings.cases,
        "tests": len(direct.collected),
        "direct": compared,
        "proxy": passed,
        "share": round(passed / max(1, compared), 4),
        "direct_s": round(direct.seconds, 1),
        "proxy_s": round(proxied.seconds, 1),
        "not_reached": {
            how: {"tests": len(run.not_reached), "from": run.not_reached[0]}
            for how, run in (("direct", direct), ("proxy", proxied))
            if run.not_reached
        },
        "broken": {
            how: run.broken for how, run in (("direct", direct), ("proxy", proxied)) if run.broken
        },
        "proxy_end": proxied.proxy,
        "passed_alone": alone,
        "explained": explained,
        "unexplained": {t: error for t, error in unexplained.items() if t not in alone},
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
    for how, what in result["broken"].items():
        print(f"  {how}: {what}")
    for how, rest in result["not_reached"].items():
        print(f"  {how}: no time for {rest['tests']} of {result['tests']}, from {rest['from']} on")
    for test, error in result["passed_alone"].items():
        print(f"  passed when it was run again alone: {test}: {error}")
    for test, reason in result["explained"].items():
        print(f"  known: {test}: {reason}")
    for test, error in list(result["unexplained"].items())[:SHOWN]:
        print(f"  {test}: {error}")
    if (more := len(result["unexplained"]) - SHOWN) > 0:
        print(f"  and {more} more")


def keep(
    file: str, result: Mapping[str, Any], known: Sequence[Difference], out: Path | None
) -> None:
    """Writes a file's result, in place of an earlier one; those of other files stay.

    What has been explained since they were run is explained in them. Results with another jaxlib
    say nothing beside these, so they go.
    """
    results: dict[str, Any] = {}
    if out is not None and out.exists():
        earlier = json.loads(out.read_text())
        results = earlier["result"] if earlier["jaxlib"] == version("jaxlib") else {}
    for name, other in results.items():
        explained, unexplained = explain(name, other["unexplained"], known)
        results[name] = other | {
            "explained": {**other["explained"], **explained},
            "unexplained": unexplained,
        }
    write_result("conformance", dict(sorted({**results, file: result}.items())), out)


def is_well(result: Mapping[str, Any]) -> bool:
    """Whether nothing is left to explain or to mend."""
    return not (result["unexplained"] or result["proxy_end"] or result["broken"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--jax-tests", type=Path, required=True, help="a checkout of JAX")
    parser.add_argument("files", nargs="*", default=FILES, help="e.g. array_test")
    parser.add_argument("--cases", type=int, default=3, help="JAX_NUM_GENERATED_CASES")
    parser.add_argument("--test-timeout", type=int, default=120, help="seconds a test")
    parser.add_argument("--file-timeout", type=int, default=1800, help="seconds a file")
    parser.add_argument("--pytest", action="append", default=[], help="e.g. --pytest=-kdonat")
    parser.add_argument("--differences", type=Path, default=DIFFERENCES, help="those explained")
    parser.add_argument("--out", type=Path, help="JSON in which the files' results are replaced")
    options = parser.parse_args(arguments)
    if options.out is not None and options.pytest:
        parser.error("--out with --pytest: a part of a file would stand there for all of it")
    files = [Path(name).stem for name in options.files]
    for file in files:
        if not (options.jax_tests / "tests" / f"{file}.py").exists():
            parser.error(f"--jax-tests {options.jax_tests}: there is no tests/{file}.py in it")
    known = known_differences(options.differences)
    settings = Settings(
        jax=options.jax_tests,
        cases=options.cases,
        test_timeout=options.test_timeout,
        file_timeout=options.file_timeout,
        pytest=options.pytest,
    )
    well = True
    for file in files:
        result = run_file(file, settings, known)
        show(file, result)
        keep(file, result, known, options.out)
        well = well and is_well(result)
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
