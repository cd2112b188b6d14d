"""Recorded results of a part of a suite."""

from __future__ import annotations

from typing import Any


def part(tests: int, direct: int, proxy: int, **not_reached: tuple[int, str]) -> dict[str, Any]:
    """Returns a kept result; ``not_reached`` has how many tests, and from which on, of each run."""
    return {
        "tests": tests,
        "direct": direct,
        "proxy": proxy,
        "share": round(proxy / max(1, direct), 4),
        "direct_s": 10.0,
        "proxy_s": 10.0,
        "not_reached": {
            how.removesuffix("_left"): {"tests": count, "from": first}
            for how, (count, first) in not_reached.items()
        },
        "broken": {},
        "proxy_end": "",
        "passed_alone": {},
        "failed": {},
    }


PREFIX = "tests/own_test.py::OwnTest::"
