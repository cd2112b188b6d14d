"""Kills and stops executors, workers and hosts under a program: what is lost, and for how long.

    python -m stress.executor_kills [--rounds 20] [--seed 1] [--minutes 25] [--out result.json]

An embedded service with the engine `distributed` has two slices of two hosts and a spare. A program
of plain JAX is on both slices. In each round, while it computes over both slices, compiles, uploads
or copies from slice to slice, an executor, its worker or both are killed, or one of the two is
stopped by SIGSTOP. Then the program has to be on another slice without a new connection, with all
that was on the lost one failing with DATA_LOSS, and an array of the other slice as it was. A round
ends when all slices of the service are ready again; at the end nothing may be left.

Measured: seconds from the kill to the first step on the next slice, whose executors start by then.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.own_service import write_result
from stress.executor_kills.rounds import Round, play, running

#: The wanted seconds to the first step.
WANTED_S = 3.0


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Returns the seconds to the first step, by victim."""
    by_victim: dict[str, list[float]] = {}
    for one in rounds:
        by_victim.setdefault(one.victim, []).append(one.step_s)
    return {
        victim: {
            "rounds": len(seconds),
            "median_s": statistics.median(seconds),
            "p90_s": sorted(seconds)[min(len(seconds) - 1, int(0.9 * len(seconds)))],
            "max_s": max(seconds),
        }
        for victim, seconds in sorted(by_victim.items())
    }


def measure(count: int, seed: int, minutes: float) -> dict[str, Any]:
    """Returns what came of the rounds."""
    began = time.monotonic()
    faults: list[str] = []
    rounds = None
    try:
        with running(seed, faults) as rounds:
            play(rounds, count, began + 60 * minutes, lambda one: print(_line(one), flush=True))
    except AssertionError as error:
        faults.append(str(error))
    done = rounds.done if rounds is not None else []
    return {
        "rounds": len(done),
        "asked": count,
        "seed": seed,
        "wall_s": time.monotonic() - began,
        "faults": faults + (rounds.faults if rounds is not None else []),
        "wanted_s": WANTED_S,
        "first_step": summary(done),
        "each": [dataclasses.asdict(one) for one in done],
    }


def _line(one: Round) -> str:
    return (
        f"{one.victim:<17}{one.at:<9}lost {one.unplaced_s:6.2f}  placed {one.placed_s:6.2f}  "
        f"step {one.step_s:6.2f}  both {one.both_s:6.2f}  refilled {one.refilled_s:6.2f}"
    )


def show(result: Mapping[str, Any]) -> None:
    """Prints the summary."""
    print(f"{result['rounds']} rounds of {result['asked']} in {result['wall_s']:.0f} s")
    print(f"seconds to the first step on the next slice (wanted: {result['wanted_s']:g})")
    for victim, of in result["first_step"].items():
        print(
            f"  {victim:<18}{of['rounds']:>4} rounds  median {of['median_s']:.2f}  "
            f"p90 {of['p90_s']:.2f}  max {of['max_s']:.2f}"
        )
    print(f"faults: {len(result['faults'])} (aim: 0)")
    for fault in result["faults"]:
        print(f"  {fault}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25.0, help="no round begins later")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    asked = parser.parse_args()
    result = measure(asked.rounds, asked.seed, asked.minutes)
    show(result)
    write_result("executor_kills", result, asked.out)
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
