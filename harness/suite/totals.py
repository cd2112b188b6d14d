"""What is printed at the end of a run, and kept of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.suite.flakes import Flake
from harness.suite.phases import PlannedTest
from harness.suite.records import TestResult

__all__ = ["by_folder", "flaky_text", "left_out_lines", "skip_lines", "slowest", "time_lines"]

#: How many components of a test's folder stand in the table of times; 2 for all others.
_DEPTHS = {"tests/servers/proxy": 4, "tests/servers": 3, "tests/e2e": 3, "tests/testbed": 3}
_SLOWEST = 25
#: What runs a layer that `scripts/test` leaves out.
_NEEDS = {
    "testbed": "./scripts/test --all, which needs Go 1.26",
    "long": "./scripts/test --all",
}


def by_folder(results: Iterable[TestResult]) -> dict[str, dict[str, Any]]:
    """Returns the tests and the seconds of each folder, the slowest first."""
    tests: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for result in results:
        folder = _folder(result.test)
        tests[folder] += 1
        seconds[folder] += result.seconds  # type: ignore[assignment]  # typeshed: int only
    return {
        folder: {"tests": tests[folder], "seconds": round(spent, 1)}
        for folder, spent in seconds.most_common()
    }


def _folder(test: str) -> str:
    folder = Path(test.partition("::")[0]).parent.as_posix()
    depth = next((n for name, n in _DEPTHS.items() if f"{folder}/".startswith(f"{name}/")), 2)
    return "/".join(folder.split("/")[:depth])


def slowest(results: Iterable[TestResult]) -> list[TestResult]:
    """Returns the slowest tests."""
    return sorted(results, key=lambda result: result.seconds, reverse=True)[:_SLOWEST]


def time_lines(results: Iterable[TestResult]) -> Iterator[str]:
    """Yields the times of the folders and of the slowest tests."""
    results = list(results)
    yield "== seconds by folder (of all workers together)"
    for folder, spent in by_folder(results).items():
        yield f"{spent['seconds']:9.1f}  {folder} ({spent['tests']} tests)"
    yield f"== the slowest {_SLOWEST} tests"
    for result in slowest(results):
        yield f"{result.seconds:9.1f}  {result.test}"


def skip_lines(results: Iterable[TestResult]) -> Iterator[str]:
    """Yields one line per reason for which tests were skipped."""
    reasons = Counter(result.reason for result in results if result.outcome == "skipped")
    if reasons:
        yield "== skipped"
    for reason, count in reasons.most_common():
        yield f"{count:9}  {reason}"


def left_out_lines(plan: Mapping[str, PlannedTest], chosen: Collection[str]) -> Iterator[str]:
    """Yields a line per layer of which a run leaves tests out, with how to run them."""
    left_out = [planned for test, planned in plan.items() if test not in chosen]
    if left_out:
        yield "== left out"
    layers = Counter(planned.layer for planned in left_out if not planned.thorough)
    for layer, count in layers.most_common():
        how = _NEEDS.get(layer, "./scripts/test")
        yield f"{count:9}  of the layer {layer}: {how}"
    if thorough := sum(planned.thorough for planned in left_out):
        yield f"{thorough:9}  thorough: ./scripts/test --long"


def flaky_text(kept: Mapping[Path, Flake]) -> Iterator[str]:
    """Yields the whole evidence of tests that failed and then passed alone."""
    if not kept:
        return
    yield f"{f' FLAKY: {len(kept)} failed once, and passed alone ':#^100}"
    for path, flake in kept.items():
        for failure in flake.result.failures:
            yield f"{f' {flake.result.test} ({failure.when}) ':_^100}"
            yield f"at {failure.at}, load {failure.load}, {failure.cpu_pressure}"
            yield f"seeds: {dict(failure.seeds) or 'none'}"
            yield failure.text
            for heading, text in failure.output:
                yield f"{f' {heading} ':-^100}\n{text}"
        yield f"kept: {path}"
    yield "`scripts/flakes file` files them in tests/flakes/, to be explained or fixed"
    yield "#" * 100
