"""Ends tunnels in each way while a program uploads: does one upload fail before the others?

    python -m stress.upload_ends [--rounds 100] [--only lost late …] [--control] [--minutes 30]
        [--programs 1] [--out FILE [--add]]

A program of plain JAX, whose race between uploads that fail together is held open, uploads twelve
arrays through a tunnel to a proxy. The tunnel ends: a link is `lost` and then ends, or has ended
before (`late`); its near end closes (`close`); the proxy hangs up (`hang up`); the pod of a plain
tunnel dies (`pod died`), or its port-forwards break (`broken`). The program must raise errors, and
its process must live, with no race. With `--control` all connections are closed at once instead, as
tunnels did before: then it must crash.

An ending that is named twice has twice the rounds. The result is written from time to time; `--add`
adds the rounds to those of the file.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.processes import run_async
from harness.results import measured, write_result
from stress.upload_ends.rounds import Load, Outcome, Rounds, rounds_of, unguarded
from stress.upload_ends.tunnels import ENDINGS

#: Rounds between two writings of the result.
_KEPT_EVERY = 20


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns what came of the rounds, by ending."""
    by_ending: dict[str, list[Outcome]] = {}
    for one in outcomes:
        by_ending.setdefault(one.ending, []).append(one)
    return {
        ending: {
            "rounds": len(ones),
            "ends": dict(collections.Counter(one.end for one in ones)),
            "raced": sum(one.raced for one in ones),
            "error_s": _spread([one.error_s for one in ones if one.end == "errors"]),
        }
        for ending, ones in by_ending.items()
    }


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {"median": round(statistics.median(seconds), 3), "max": max(seconds)}


async def measure(
    endings: Sequence[str],
    count: int,
    programs: int,
    until: float,
    load: Load,
    keep: Callable[[Outcome], None],
) -> None:
    """Plays rounds.

    Args:
      endings: In turn.
      count: Rounds of each.
      programs: At once.
      until: No round begins later.
      load: What programs upload.
      keep: Gets each outcome.
    """
    left = iter(count * list(endings))

    async def play(rounds: Rounds) -> None:
        while time.monotonic() < until and (ending := next(left, None)):
            keep(await rounds.play(ending))

    async with rounds_of(load, programs) as every, asyncio.TaskGroup() as group:
        for rounds in every:
            group.create_task(play(rounds))


def show(result: Mapping[str, Any]) -> None:
    """Prints the summary."""
    for kind in ("control", "guarded"):
        for ending, of in result.get(kind, {"endings": {}})["endings"].items():
            ends = ", ".join(f"{number} {end}" for end, number in of["ends"].items())
            print(f"{kind:<8} {ending:<9}{of['rounds']:>5} rounds: {ends}; {of['raced']} raced")


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100, help="of each ending")
    parser.add_argument("--only", nargs="+", choices=ENDINGS, default=list(ENDINGS))
    parser.add_argument("--programs", type=int, default=1, help="that upload at once")
    parser.add_argument("--control", action="store_true", help="close all at once")
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins later")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--add", action="store_true", help="keep the rounds that are there")
    asked = parser.parse_args()
    earlier: dict[str, Any] | None = None
    if asked.add:
        if asked.out is None or not asked.out.is_file():
            parser.error(f"--add: --out={asked.out} is no file of an earlier run")
        earlier = json.loads(asked.out.read_text())
    load = Load()
    result: dict[str, Any] = dict(earlier["result"]) if earlier else {}
    result["load"] = dataclasses.asdict(load)
    kind = "control" if asked.control else "guarded"
    before = [Outcome(*one) for one in result.get(kind, {"each": ()})["each"]]
    outcomes: list[Outcome] = []

    def keep(outcome: Outcome) -> None:
        outcomes.append(outcome)
        print(f"{len(outcomes)} {outcome}", flush=True)
        if len(outcomes) % _KEPT_EVERY == 0:
            write()

    def write() -> None:
        every = before + outcomes
        each = [dataclasses.astuple(one) for one in every]
        result[kind] = {"endings": summary(every), "each": each}
        write_result("upload_ends", result, asked.out, earlier=earlier)

    until = time.monotonic() + 60 * asked.minutes
    with unguarded() if asked.control else contextlib.nullcontext():
        run_async(measure(asked.only, asked.rounds, asked.programs, until, load, keep))
    write()
    show(result)
    is_crashing = any(one.end.startswith("SIG") for one in outcomes)
    is_sound = all(one.end == "errors" and not one.raced for one in outcomes)
    return 0 if (is_crashing if asked.control else is_sound) else 1


if __name__ == "__main__":
    sys.exit(main())
