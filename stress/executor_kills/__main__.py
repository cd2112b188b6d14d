"""Kills and stops executors, workers and hosts under a program: what is lost, and for how long.

    python -m stress.executor_kills [--rounds 20] [--seed 1] [--minutes 25] [--out FILE [--add]]

An embedded service with the engine `distributed` has two slices of two hosts and a spare. A program
of plain JAX is on both slices. In each round, while it computes over both slices, compiles, uploads
or copies from slice to slice, an executor, its worker or both are killed, or one of the two is
stopped by SIGSTOP. Then the program has to be on another slice without a new connection, with all
that was on the lost one failing with DATA_LOSS, and an array of the other slice as it was. A round
ends when all slices of the service are ready again; at the end nothing may be left.

The result is written after each round; `--add` adds the rounds to those of the file.

Measured: seconds from the kill to the first step on the next slice, whose executors start by then.
Ends with 1 if there was a fault, or a kill after which that took longer than wanted. (A process
that is stopped is noticed later, when it has not answered for a while.)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.results import exit_code, measured, write_result
from stress.executor_kills.rounds import Round, Rounds, play, running

#: The wanted seconds from a kill to the first step.
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


def measure(
    count: int,
    seed: int,
    minutes: float,
    before: Mapping[str, Any],
    keep: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    """Plays rounds; returns what came of them and of those before.

    Args:
      count: How many, at the most.
      seed: What happens in them follows from it.
      minutes: No round begins later.
      before: An earlier result, or nothing.
      keep: Called with the result after each round.
    """
    began = time.monotonic()
    faults: list[str] = []
    earlier = [Round(**one) for one in before.get("each", ())]
    playing: list[Rounds] = []

    def result() -> dict[str, Any]:
        done = earlier + [one for rounds in playing for one in rounds.done]
        return {
            "rounds": len(done),
            "asked": before.get("asked", 0) + count,
            "seeds": [*before.get("seeds", ()), seed],
            "wall_s": before.get("wall_s", 0.0) + time.monotonic() - began,
            "faults": [
                *before.get("faults", ()),
                *faults,
                *(fault for rounds in playing for fault in rounds.faults),
            ],
            "wanted_s": WANTED_S,
            "first_step": summary(done),
            "each": [dataclasses.asdict(one) for one in done],
        }

    def show_round(one: Round) -> None:
        print(_line(one), flush=True)
        keep(result())

    try:
        with running(seed, faults) as rounds:
            playing.append(rounds)
            play(rounds, count, began + 60 * minutes, show_round)
    except AssertionError as error:
        faults.append(str(error))
    return result()


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


def missed(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields the faults, and the kills after which the first step came later than wanted."""
    yield from result["faults"]
    for number, one in enumerate(result["each"]):
        if not one["victim"].startswith("stopped") and one["step_s"] > result["wanted_s"]:
            yield (
                f"round {number}, {one['victim']} during {one['at']}: the first step came after "
                f"{one['step_s']:.1f} s (wanted: {result['wanted_s']:g} s)"
            )


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=25.0, help="no round begins later")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--add", action="store_true", help="keep the rounds that are there")
    asked = parser.parse_args()
    earlier: dict[str, Any] | None = None
    if asked.add:
        if asked.out is None or not asked.out.is_file():
            parser.error(f"--add: --out={asked.out} is no file of an earlier run")
        earlier = json.loads(asked.out.read_text())

    def keep(result: dict[str, Any]) -> None:
        seconds = {"step_s": [one["step_s"] for one in result["each"]]}
        write_result("executor_kills", result, asked.out, seconds, earlier=earlier)

    before = earlier["result"] if earlier else {}
    result = measure(asked.rounds, asked.seed, asked.minutes, before, keep)
    show(result)
    keep(result)
    return exit_code(missed(result))


if __name__ == "__main__":
    sys.exit(main())
