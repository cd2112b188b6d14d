"""kill -9 of the resource manager at random moments under load: nothing that it announced is lost.

    python -m stress.manager_kills [--kills 100] [--tenants 50] [--slices 8] [--seed 1] [--out F]

In `stress.manager_kills.kills`, 50 tenants at a time, of mixed priority, start, end and preempt
each other on 8 slices, whose workers die and which are cordoned and drained now and then. They run
the code of real proxies and workers without devices, over real gRPC. Of five kills, two are at any
moment of the load, two right after an event, and one while all reconnect after the kill before.
After each kill (except those that are followed by another at once) everything must settle: no
tenant lost a slice without a recorded decision, no slice has two holders, the history has each
grant, release and preemption sent to a tenant once, and its numbers have no gap.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.own_service import own_directories
from harness.processes import Service
from harness.results import exit_code, measured, write_result
from stress.manager_kills.kills import FLAGS, Aim, Kills

AIMS: tuple[Aim, ...] = ("load", "deed", "load", "deed", "return")


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Sends the lines that the tenants' links write to standard error to a file."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def measure(count: int, tenants: int, slices: int, seed: int) -> dict[str, Any]:
    """Returns what came of the kills."""
    began = time.monotonic()
    with (
        own_directories() as scratch,
        quiet(scratch / "log"),
        Service(scratch / "s", *FLAGS, count=str(slices)) as service,
        contextlib.closing(Kills(service, slices=slices, tenants=tenants, seed=seed)) as kills,
    ):
        kills.rest()
        aims = list(itertools.islice(itertools.cycle(AIMS), count))
        for aim, following in itertools.zip_longest(aims, aims[1:]):
            kills.kill(aim)
            if following != "return":
                kills.rest()
            if kills.book.faults:
                break
            if len(kills.kills) % 10 == 0:
                print(f"{len(kills.kills)} kills, {kills.book.kinds.total()} decisions", flush=True)
        faults = kills.finish()
        return {
            "kills": len(kills.kills),
            "tenants_at_a_time": tenants,
            "slices": slices,
            "seed": seed,
            "wall_s": time.monotonic() - began,
            "faults": faults,
            "tenants": kills.crowd.started,
            "decisions": dict(sorted(kills.book.kinds.items())),
            "messages": dict(sorted(kills.book.messages.items())),
            "each": [dataclasses.asdict(kill) for kill in kills.kills],
        }


def show(result: Mapping[str, Any]) -> None:
    aims = collections.Counter(kill["aim"] for kill in result["each"])
    counts = ", ".join(f"{count} at {aim}" for aim, count in sorted(aims.items()))
    print(f"kills                 {result['kills']} ({counts})")
    print(f"tenants, in all       {result['tenants']}")
    decisions, messages = result["decisions"], result["messages"]
    grants = decisions.get("slice.placed", 0) + decisions.get("slice.replaced", 0)
    print(f"decisions             {sum(decisions.values())}")
    print(f"  grants              {grants} ({messages.get('placed', 0)} messages)")
    print(f"  preemptions         {decisions.get('tenant.preempted', 0)}")
    print(f"  releases            {decisions.get('tenant.released', 0)}")
    print(f"faults                {len(result['faults'])} (aim: 0)")
    for fault in result["faults"]:
        print(f"  {fault}")
    for name, seconds in seconds_of(result).items():
        if seconds:
            print(f"{name:<22}median {statistics.median(seconds):.1f}, worst {max(seconds):.1f}")


def seconds_of(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """Returns the seconds of all kills; those until all rested where that was awaited."""
    return {
        name: [kill[name] for kill in result["each"] if kill[name] is not None]
        for name in ("away_s", "rest_s")
    }


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--tenants", type=int, default=50, help="at the same time")
    parser.add_argument("--slices", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    result = measure(options.kills, options.tenants, options.slices, options.seed)
    show(result)
    write_result("manager_kills", result, options.out, seconds_of(result))
    return exit_code(result["faults"])


if __name__ == "__main__":
    sys.exit(main())
