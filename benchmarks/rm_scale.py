"""One resource manager and ever more slices: how soon tenants are notified, and what it costs.

    python -m benchmarks.rm_scale [--slices 100 1000 3000 10000] [--out F] [--picture F.png]

A real resource manager with its state file, on loopback. The workers are streams of one other
process, 100 per connection; the 1,000 tenants are streams of this one. Six of ten slices are of
one type: all but the spares are held, and the other tenants wait for them. Two of ten are of a type
that is held likewise, and fails. (Failed slices are replaced by spares, and a freed slice becomes
a spare first: with one type, waiting tenants would have to wait until all are whole.) The rest are
of a third type, mostly free. First, the processor time of the manager is measured while it only
receives heartbeats, one per worker in 10 s. Then, each kind alone and all three at once, the time
from the trigger of a placement to the notice at the tenant:

- freed: a holder ends; the head of the queue learns that its gang is placed
- lost: a worker's stream breaks; its slice's holder learns of its place on a spare
- asked: a new tenant says hello; it learns that its gang is placed

At the end the manager is killed and started again: until all have returned, or it stops waiting.
The second table leaves out times during which the machine was busy otherwise (`DISTURBED_S`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rm_scale_service import TENANT_CONNECTIONS, TENANTS, House, Manager, Shape, Workers
from benchmarks.rm_scale_tenants import Tenants
from benchmarks.run_delay import RunDelay
from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result
from shared_pathways_service.constants import RECOVERING_S

#: Seconds of heartbeats that are measured.
BEATS_S = 30.0
#: The aim of the 99th percentile.
WANTED_S = 0.1
#: A time is left out of the second table when the threads of the three processes waited longer
#: than this for a processor, all taken together: then the machine was measured.
DISTURBED_S = 0.02


async def measure(
    shape: Shape, rounds: int, beats_s: float
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Measures one manager with the slices of a shape.

    Returns:
      The row of the result, and the seconds from each trigger to its notice, by kind.
    """
    with own_directories() as scratch, contextlib.closing(Manager(shape, scratch)) as manager:
        empty = manager.rss()
        began, cpu = time.monotonic(), manager.cpu_s()
        async with Workers.started(manager.address, shape) as workers:
            joined = {"wall_s": time.monotonic() - began, "cpu_s": manager.cpu_s() - cpu}
            tenants = Tenants(manager.address, TENANT_CONNECTIONS)
            try:
                waits = RunDelay([manager.process.pid, workers.pid, os.getpid()])
                house = House(shape, tenants, workers, rounds=rounds, waits=waits)
                await house.fill()
                beats = await _rest(manager, beats_s)
                began, cpu = time.monotonic(), manager.cpu_s()
                await house.run()
                load = {"wall_s": time.monotonic() - began, "cpu_s": manager.cpu_s() - cpu}
                full = manager.rss()
                back = await _restart(manager)
            finally:
                await tenants.close()
        assert manager.process.poll() is None
        row = {
            "slices": shape.slices,
            "tenants": TENANTS,
            "gang": shape.gang,
            "waiting": TENANTS - shape.holders - shape.broken,
            "joining": joined,
            "beats": beats,
            "load": {**load, "cpu_ratio": load["cpu_s"] / load["wall_s"]},
            "rss_bytes": {"empty": empty, "full": full},
            "restart": back,
            "latency": {name: _latency(took) for name, took in house.took.items()},
        }
        return row, {name: [wall for wall, _ in took] for name, took in house.took.items()}


async def _rest(manager: Manager, seconds: float) -> dict[str, float]:
    """Measures the manager while it only receives heartbeats."""
    await asyncio.sleep(3.0)  # until the collected notices of waiting tenants are sent
    began, cpu = time.monotonic(), manager.cpu_s()
    await asyncio.sleep(seconds)
    wall = time.monotonic() - began
    return {"wall_s": wall, "cpu_ratio": (manager.cpu_s() - cpu) / wall}


async def _restart(manager: Manager) -> dict[str, Any]:
    """Measures how workers and tenants reconnect to a killed manager."""
    manager.restart()
    began, cpu = time.monotonic(), manager.cpu_s()
    while (unheard := manager.unheard()) is None:  # noqa: ASYNC110 - another process wrote it
        await asyncio.sleep(0.1)
    wall, cpu = time.monotonic() - began, manager.cpu_s() - cpu
    return {
        "wall_s": wall,
        "cpu_s": cpu,
        "cpu_to_limit": cpu / RECOVERING_S,
        "slices_unheard": unheard,
    }


def _latency(took: Sequence[tuple[float, float]]) -> dict[str, Any]:
    return {
        "all": _cuts([wall for wall, _ in took]),
        "undisturbed": _cuts([wall for wall, waited in took if waited < DISTURBED_S]),
    }


def _cuts(seconds: Sequence[float]) -> dict[str, float]:
    """Returns percentiles; of fewer than two there are none."""
    if len(seconds) < 2:
        return {"count": len(seconds)}
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "count": len(seconds),
        "p50_s": cuts[49],
        "p99_s": cuts[98],
        "worst_s": max(seconds),
        "p99_to_wanted": cuts[98] / WANTED_S,
    }


def rows(results: Sequence[Mapping[str, Any]], which: str) -> Iterator[list[str]]:
    """Yields the table, its head first.

    Args:
      results: One a size.
      which: Which times: ``all`` or ``undisturbed``.
    """
    yield [
        *("slices", "freed p50/p99", "lost p50/p99", "asked p50/p99", "worst p99 to 100 ms"),
        *("beats, of a core", "load, of a core", "restart, CPU to 20 s", "RSS"),
    ]
    for one in results:
        latency = [both[which] for both in one["latency"].values()]
        times = [_cell(cut) for cut in latency]
        worst = max(cut.get("p99_to_wanted", math.nan) for cut in latency)
        yield [
            *(f"{one['slices']:,}", *times, f"{worst:.2f}"),
            *(f"{one['beats']['cpu_ratio']:.1%}", f"{one['load']['cpu_ratio']:.1%}"),
            f"{one['restart']['cpu_to_limit']:.2f}",
            f"{one['rss_bytes']['full'] / 2**20:.0f} MiB",
        ]


def _cell(cut: Mapping[str, float]) -> str:
    if "p50_s" not in cut:
        return "-"
    return f"{cut['p50_s'] * 1e3:.1f}/{cut['p99_s'] * 1e3:.1f} ms ({cut['count']})"


def draw(results: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws latency, processor time and memory over the number of slices."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), dpi=100, layout="constrained")
    latency, cpu, memory = figure.subplots(1, 3)
    slices = [one["slices"] for one in results]
    for name in results[0]["latency"]:
        p99 = [one["latency"][name]["undisturbed"].get("p99_s", math.nan) * 1e3 for one in results]
        latency.plot(slices, p99, "o-", label=name)
    latency.axhline(WANTED_S * 1e3, color="tab:red", linestyle="--", label="wanted")
    latency.set_ylabel("from trigger to notice, p99, ms")
    for name in ("beats", "load"):
        ratio = [one[name]["cpu_ratio"] * 100 for one in results]
        cpu.plot(slices, ratio, "o-", label=name)
    cpu.axhline(100, color="tab:red", linestyle="--", label="one core")
    cpu.set_ylabel("processor time, % of a core")
    memory.plot(slices, [one["rss_bytes"]["full"] / 2**20 for one in results], "o-", label="RSS")
    memory.set_ylabel("memory, MiB")
    for axes in (latency, cpu, memory):
        axes.set_xlabel("slices")
        axes.set_ylim(bottom=0)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slices", type=int, nargs="+", default=[100, 1_000, 3_000, 10_000])
    parser.add_argument("--rounds", type=int, default=300, help="triggers of each kind")
    parser.add_argument("--beats", type=float, default=BEATS_S, help="seconds of beats alone")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--picture", type=Path, help="where a PNG goes; needs matplotlib")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = []
    repeats: dict[str, list[float]] = {}
    for slices in options.slices:
        size, seconds = asyncio.run(measure(Shape.of(slices), options.rounds, options.beats))
        results.append({**size, "load_average": os.getloadavg()})
        repeats |= {f"{name}, {slices} slices": took for name, took in seconds.items()}
        print(json.dumps(results[-1]), flush=True)
    for which in ("all", "undisturbed"):
        print(f"\n{which}")
        for row in rows(results, which):
            print("| " + " | ".join(row) + " |")
    write_result("rm_scale", {"wanted_s": WANTED_S, "sizes": results}, options.out, repeats)
    if options.picture:
        draw(results, options.picture)
    return exit_code(missed(results))


def missed(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the notices whose 99th percentile is above what is wanted."""
    for one in results:
        for name, both in one["latency"].items():
            if both["undisturbed"].get("p99_to_wanted", 0.0) > 1:
                yield f"{name} with {one['slices']} slices"


if __name__ == "__main__":
    sys.exit(main())
