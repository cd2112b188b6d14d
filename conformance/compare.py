"""Compares a suite's direct run with its run through a proxy, and explains what differs."""

from __future__ import annotations

import dataclasses
import fnmatch
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.runs import Run

__all__ = [
    "DIFFERENCES",
    "Difference",
    "compare",
    "differences",
    "explain",
    "first_not_reached",
    "is_well",
    "known_differences",
    "merge",
]

DIFFERENCES = Path(__file__).with_name("differences.toml")
#: Tests of a part that are run again, at most: where more differ, the single test is not the cause.
AGAIN = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """A pattern of tests that pass on the CPU and not through the proxy.

    Attributes:
      test: ``suite/path::Class::test``, with ``*`` and ``?``.
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
    """Returns why a test need not pass; empty if there is no reason."""
    # A parameter's brackets are no pattern.
    return next(
        (d.reason for d in known if fnmatch.fnmatchcase(test, d.test.replace("[", "[[]"))), ""
    )


def differences(direct: Run, proxied: Run) -> dict[str, str]:
    """Returns the tests that pass directly only, with their errors through the proxy.

    Tests for which there was no time through the proxy are not among them.
    """
    missing = direct.passed - proxied.passed - frozenset(proxied.not_reached)
    return {test: proxied.failed.get(test) or _without_error(test, proxied) for test in
            sorted(missing)}  # fmt: skip


def _without_error(test: str, run: Run) -> str:
    if test in run.failed:
        return "it failed"
    return "it was skipped" if test in run.skipped else "there is no such test"


def explain(
    suite: str, errors: Mapping[str, str], known: Sequence[Difference]
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the reasons of the tests that have one, and the errors of the others."""
    explained = {t: reason for t in errors if (reason := reason_of(f"{suite}/{t}", known))}
    return explained, {test: error for test, error in errors.items() if test not in explained}


def compare(
    suite: str,
    direct: Run,
    proxied: Run,
    known: Sequence[Difference],
    again: Callable[[Sequence[str]], Run],
) -> dict[str, Any]:
    """Returns the comparison of a part, which is printed and recorded.

    A test that failed in the run through the proxy has not passed there: not even if it passes when
    it is run again alone, which is recorded as well.

    Args:
      suite: The suite's name.
      direct: The run on the CPU.
      proxied: The run through a proxy.
      known: Differences that are explained.
      again: Runs some tests once more, through another proxy.
    """
    missing = differences(direct, proxied)
    _, unexplained = explain(suite, missing, known)
    alone: dict[str, str] = {}
    end = proxied.proxy
    if 0 < len(unexplained) <= AGAIN:
        second = again(sorted(unexplained))
        alone = {test: error for test, error in unexplained.items() if test in second.passed}
        end = end or second.proxy
    compared = len(direct.passed - frozenset(proxied.not_reached))
    passed = compared - len(missing)
    runs = {"direct": direct, "proxy": proxied}
    broken = {how: run.broken for how, run in runs.items() if run.broken}
    if proxied.backend == "cpu":
        broken.setdefault("proxy", "the tests ran on the local CPU")
    return {
        "tests": len(direct.collected),
        "direct": compared,
        "proxy": passed,
        "share": round(passed / max(1, compared), 4),
        "direct_s": round(direct.seconds, 1),
        "proxy_s": round(proxied.seconds, 1),
        "not_reached": {
            how: {"tests": len(run.not_reached), "from": run.not_reached[0]}
            for how, run in runs.items()
            if run.not_reached
        },
        "broken": broken,
        "proxy_end": end,
        "passed_alone": alone,
        "failed": {test: error for test, error in missing.items() if test not in alone},
    }


def first_not_reached(result: Mapping[str, Any]) -> str:
    """Returns the test from which on a part has not been compared; empty if all of it was.

    Of the two runs, the one that came less far counts: what only the other reached is run again.
    """
    left = [rest for rest in result["not_reached"].values() if rest["tests"]]
    return max(left, key=lambda rest: rest["tests"])["from"] if left else ""


def merge(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of a part that ran in two steps.

    Raises:
      ValueError: The later one found no tests; the one that it was to start with is gone.
    """
    if not later["tests"]:
        raise ValueError(f"there is no test {first_not_reached(earlier)}: run all, not --continue")
    counts = ("direct", "proxy", "direct_s", "proxy_s")
    added = {key: round(earlier[key] + later[key], 1) for key in counts}
    united = {key: {**earlier[key], **later[key]} for key in ("broken", "passed_alone", "failed")}
    return {
        **later,
        **added,
        **united,
        "tests": earlier["tests"],
        "share": round(added["proxy"] / max(1, added["direct"]), 4),
        "proxy_end": earlier["proxy_end"] or later["proxy_end"],
        "continues": [*earlier.get("continues", ()), earlier.get("provenance")],
    }


def is_well(suite: str, result: Mapping[str, Any], known: Sequence[Difference]) -> bool:
    """Whether a part ran to its end, and each difference has a reason."""
    _, unexplained = explain(suite, result["failed"], known)
    return not (unexplained or result["proxy_end"] or result["broken"])
