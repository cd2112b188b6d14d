"""Ends tunnels in each way while a program uploads: does one upload fail before the others?

    python -m stress.upload_ends [--rounds 1000] [--control 20] [--only lost late …] [--programs 1]
        [--minutes 30] [--out FILE] [--add FILE …]

A program of plain JAX, whose race between uploads that fail together is held open, uploads twelve
arrays through a tunnel to a proxy. The tunnel ends: a link is `lost` and then ends, or has ended
before (`late`); its near end closes (`close`); the proxy hangs up (`hang up`); the pod of a plain
tunnel dies (`pod died`), or its port-forwards break (`broken`). The program must raise errors, and
its process must live, with no race. In the rounds of the control, which come first, lost links
close all connections at once instead, as they did before: then uploads must fail together, which
crashes some programs.

The result is written from time to time. `--add` includes the rounds of earlier results.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.processes import run_async
from harness.results import exit_code, measured, write_result
from stress.upload_ends.rounds import Load, Outcome, Rounds, rounds_of, unguarded
from stress.upload_ends.tunnels import ENDINGS

#: Rounds of each ending in twenty.
_MIX = {"lost": 12, "late": 3, "close": 2, "hang up": 1, "pod died": 1, "broken": 1}
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
    every: Sequence[Rounds], endings: Iterable[str], until: float, keep: Callable[[Outcome], None]
) -> None:
    """Plays rounds.

    Args:
      every: Plays them, each with a program of its own.
      endings: Of the rounds.
      until: No round begins later.
      keep: Gets each outcome.
    """
    left = iter(endings)

    async def play(rounds: Rounds) -> None:
        while time.monotonic() < until and (ending := next(left, None)):
            keep(await rounds.play(ending))

    async with asyncio.TaskGroup() as group:
        for rounds in every:
            group.create_task(play(rounds))


def mixed(only: Collection[str], count: int) -> Iterator[str]:
    """Yields endings by their parts of the mix, in turn."""
    mix = [
        ending
        for number in range(max(_MIX.values()))
        for ending, parts in _MIX.items()
        if ending in only and number < parts
    ]
    return itertools.islice(itertools.cycle(mix), count)


class Kept:
    """The result so far.

    Args:
      load: What programs upload.
      out: The file, if it is kept.
      earlier: The records of earlier runs.
    """

    def __init__(
        self, load: Load, out: Path | None, earlier: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self._out = out
        self._earlier = _together(earlier) if earlier else None
        self.outcomes = {
            kind: [
                Outcome(*one)
                for record in earlier
                for one in record["result"].get(kind, {"each": ()})["each"]
            ]
            for kind in ("control", "guarded")
        }
        self._load = dataclasses.asdict(load)

    def add(self, kind: str, outcome: Outcome) -> None:
        """Adds a round."""
        outcomes = self.outcomes[kind]
        outcomes.append(outcome)
        print(f"{kind} {len(outcomes)} {outcome}", flush=True)
        if len(outcomes) % _KEPT_EVERY == 0:
            self.write()

    def result(self) -> dict[str, Any]:
        """Returns it as it is kept."""
        return {"load": self._load} | {
            kind: {
                "endings": summary(outcomes),
                "each": [dataclasses.astuple(one) for one in outcomes],
            }
            for kind, outcomes in self.outcomes.items()
        }

    def write(self) -> None:
        """Writes it to the file."""
        waits = {"error_s": [one.error_s for each in self.outcomes.values() for one in each]}
        write_result("upload_ends", self.result(), self._out, waits, earlier=self._earlier)

    def missed(self) -> Iterator[str]:
        """Yields rounds that crashed, hung or raced, and a control in which no uploads raced."""
        control, guarded = self.outcomes["control"], self.outcomes["guarded"]
        if control and not any(one.raced for one in control):
            yield "no uploads failed together in the control"
        for one in guarded:
            if one.end != "errors" or one.raced:
                yield str(one)


def _together(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a record with the provenance of several."""
    every = [
        of
        for record in records
        for of in (record["provenance"], *record["provenance"].get("continues", ()))
    ]
    return {"provenance": {**every[0], "continues": every[1:]}}


def show(result: Mapping[str, Any]) -> None:
    """Prints the summary."""
    for kind in ("control", "guarded"):
        for ending, of in result[kind]["endings"].items():
            ends = ", ".join(f"{number} {end}" for end, number in of["ends"].items())
            print(f"{kind:<8} {ending:<9}{of['rounds']:>5} rounds: {ends}; {of['raced']} raced")


async def _play_all(asked: argparse.Namespace, load: Load, kept: Kept) -> None:
    until = time.monotonic() + 60 * asked.minutes
    async with rounds_of(load, asked.programs) as every:
        with unguarded():
            control = itertools.repeat("lost", asked.control)
            await measure(every, control, until, lambda one: kept.add("control", one))
        endings = mixed(asked.only, asked.rounds)
        await measure(every, endings, until, lambda one: kept.add("guarded", one))


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--control", type=int, default=20, help="rounds that should race")
    parser.add_argument("--only", nargs="+", choices=ENDINGS, default=list(ENDINGS))
    parser.add_argument("--programs", type=int, default=1, help="that upload at once")
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins later")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--add", nargs="+", type=Path, default=[], help="earlier results to add")
    asked = parser.parse_args()
    load = Load()
    kept = Kept(load, asked.out, [json.loads(path.read_text()) for path in asked.add])
    if asked.rounds or asked.control:
        run_async(_play_all(asked, load, kept))
    kept.write()
    show(kept.result())
    return exit_code(kept.missed())


if __name__ == "__main__":
    sys.exit(main())
