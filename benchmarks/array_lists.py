"""Lists of thousands of small arrays: put, fetched, and given to a program, beside JAX's own CPU.

    python -m benchmarks.array_lists [--arrays 3000] [--rounds 3] [--out result.json]

Each round runs a proxy and the CPU, one after the other, each in processes of its own; the figures
are medians of all rounds, of the ratios too. Counts the requests that reach the proxy. Ends with 1
if a list came back wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.proxy.running import Figures, client, running_proxy
from harness.results import exit_code, measured, write_result

#: Put as a list, fetched as a list, a program of 1,000 of them.
STEPS = ("put", "fetch", "program")


def measure(arrays: int, rounds: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Returns the result, and the ratio of each step in each round."""
    found: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        with running_proxy() as proxy:
            there = client("lists", str(arrays), proxy.address, str(proxy.pid))
        found.append((there, client("lists", str(arrays))))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    ratios = {step: [there[step] / here[step] for there, here in found] for step in STEPS}
    proxied = _medians([there for there, _ in found])
    local = _medians([here for _, here in found])
    result = {
        "arrays": arrays,
        "seconds": {step: proxied.pop(step) for step in STEPS},
        "local_seconds": {step: local[step] for step in STEPS},
        "ratio": {step: statistics.median(each) for step, each in ratios.items()},
        **proxied,
    }
    return result, ratios


def _medians(figures: list[Figures]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _wrong(result: Mapping[str, Any]) -> list[str]:
    return ["a list came back wrong"] if result["wrong"] else []


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arrays", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result, ratios = measure(arguments.arrays, arguments.rounds)
    print(json.dumps(result, indent=2))
    write_result("array_lists", result, arguments.out, ratios)
    return exit_code(_wrong(result))


if __name__ == "__main__":
    sys.exit(main())
