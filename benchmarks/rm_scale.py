"""One resource manager and ever more slices: how soon tenants hear, and what it costs to be there.

    python -m benchmarks.rm_scale [--slices 100 1000 3000 10000] [--out F] [--picture F.png]

A real resource manager with its state file, on loopback; the workers are streams of one other
process, 100 a connection, the 1,000 tenants streams of this one. Six slices of ten are of one type:
but for the spares all are held, and the tenants that hold nothing wait for them. Two of ten are of
a type that is held likewise, and breaks. (Slices that break are replaced by spares, and what comes
free becomes a spare first: of one type, those that wait would have to wait until all are whole.)
The rest are of a third type, mostly free. Measured is, first, the processor time of the manager
while all it has to do is hear the beats, one a worker in 10 s. Then, one after the other of its
kind and the three kinds side by side, the time from what triggers a placement to the notice at the
tenant:

- freed: a holder says that it ends; the head of the queue hears that its gang is placed
- lost: a worker's stream breaks; its slice's holder hears of its place on a spare
- asked: a new tenant says hello; it hears that its gang is placed

At the end the manager is killed, and started again: until all are back, or it waits no longer.
The second table leaves out what the machine's other work disturbed (`DISTURBED_S`).
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rm_scale_tenants import LIMIT_S, Tenant, Tenants
from benchmarks.run_delay import RunDelay
from harness.own_service import ROOT, own_directories, write_result
from shared_pathways_service.constants import RECOVERING_S

LINE, BREAKS, FREE = "tpuv6e:2x2", "tpuv5:2x2x1", "tpuv5e:2x2"
#: (A connection has 100 streams at a time, and some tenants come before others are gone.)
HOLDERS, TENANTS, TENANT_CONNECTIONS = 800, 1_000, 12
STREAMS = 100  #: What is run; with another profiler in front of it, for example.
MANAGER = os.environ.get(
    "BENCH_MANAGER", "-m shared_pathways_service.servers.resource_manager"
).split()
#: Seconds of beats that are measured, and between two triggers of one kind.
BEATS_S = 30.0
PACE_S = 0.15
#: What is wanted of the 99th percentile.
WANTED_S = 0.1
#: A time is left out of the second table when the threads of the three processes waited longer
#: than this for a processor, all taken together: then the machine was measured.
DISTURBED_S = 0.02


@dataclasses.dataclass(frozen=True)
class Shape:
    """How so many slices are given out.

    Attributes:
      slices: In all.
      gang: Slices that a holder has, and one that waits wants.
      holders: Tenants that hold all slices of `LINE` but the spares.
      broken: Tenants that hold all slices of `BREAKS` but the spares.
      spares: Of each type.
    """

    slices: int
    gang: int
    holders: int
    broken: int
    spares: int

    @classmethod
    def of(cls, slices: int) -> Shape:
        gang = max(1, slices * 8 // 10 // HOLDERS)
        holders = min(HOLDERS, slices * 8 // 10 // gang)
        broken = holders // 4
        return cls(slices, gang, holders - broken, broken, max(5, slices // 100))

    @property
    def counts(self) -> dict[str, int]:
        line, breaks = (n * self.gang + self.spares for n in (self.holders, self.broken))
        return {LINE: line, BREAKS: breaks, FREE: self.slices - line - breaks}


class Manager:
    """The resource manager's process, which can be killed and started again."""

    def __init__(self, shape: Shape, scratch: Path) -> None:
        counts = shape.counts
        self._flags = [
            f"--instance_type={','.join(counts)}",
            f"--instance_count={','.join(map(str, counts.values()))}",
            f"--num_spares={shape.spares}",
            "--max_calls_per_host=16384",  # all are on this one
            f"--state_file={scratch / 'state'}",
        ]
        self._log = scratch / "rm.log"
        port = self._start("--first_start", "--server_port=0")
        self.address = f"127.0.0.1:{port}"
        self._port = port

    def _start(self, *flags: str) -> int:
        read_fd, write_fd = os.pipe()
        with (
            os.fdopen(read_fd) as ready,
            os.fdopen(write_fd, "w") as told,
            self._log.open("wb") as log,
        ):
            told_fd = told.fileno()
            self.process = psutil.Popen(
                [sys.executable, *MANAGER, *self._flags, *flags, f"--ready_fd={told_fd}"],
                stdin=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(told_fd,),
                cwd=ROOT,
            )
            told.close()
            return int(json.loads(ready.readline())["port"])

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss(self) -> int:
        return int(self.process.memory_info().rss)

    def restart(self) -> None:
        """Kills it and starts it again on the same port."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        self._start(f"--server_port={self._port}")

    def unheard(self) -> int | None:
        """Returns how many slices did not come back before it granted again; None: it waits."""
        found = re.search(r"rm.recovered .*slices_unheard=(\d+)", self._log.read_text())
        return None if found is None else int(found[1])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(LIMIT_S)


class Workers:
    """The workers' process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, address: str, shape: Shape) -> AsyncIterator[Workers]:
        kinds = [f"{kind}={count}" for kind, count in shape.counts.items()]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.rm_scale_workers", address, str(STREAMS), *kinds),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        try:
            assert process.stdout
            line = await asyncio.wait_for(process.stdout.readline(), 5 * LIMIT_S)
            assert line == b"ready\n", line
            yield cls(process)
        finally:
            process.kill()
            await process.wait()

    async def lose(self, slice_id: str) -> float:
        """Breaks a worker's stream; returns when."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{slice_id}\n".encode())
        lost, at = (await self._process.stdout.readline()).decode().split()
        assert lost == slice_id
        return float(at)


class House:
    """A full service: holders, those that wait, and triggers."""

    def __init__(
        self, shape: Shape, tenants: Tenants, workers: Workers, *, rounds: int, waits: RunDelay
    ) -> None:
        self._waits = waits
        self._shape = shape
        self._tenants = tenants
        self._workers = workers
        self._rounds = rounds
        self._draw = random.Random(1)
        self._holders: list[Tenant] = []
        self._broken: list[Tenant] = []
        self._waiting: collections.deque[Tenant] = collections.deque()
        #: By trigger, seconds, and how long the threads of all three waited for a processor then.
        self.took: dict[str, list[tuple[float, float]]] = {"freed": [], "lost": [], "asked": []}

    async def fill(self) -> None:
        """Has all tenants come."""
        shape = self._shape
        for kind, count, held in (
            (LINE, shape.holders, self._holders),
            (BREAKS, shape.broken, self._broken),
        ):
            for _ in range(count):
                tenant = self._tenants.enter(kind, shape.gang)
                await asyncio.wait_for(tenant.running, LIMIT_S)
                held.append(tenant)
        for _ in range(TENANTS - shape.holders - shape.broken):
            await self._queue()

    async def run(self) -> None:
        """Has all three kinds of triggers happen, side by side."""
        await asyncio.gather(
            self._repeat("freed", self._free),
            self._repeat("lost", self._lose),
            self._repeat("asked", self._ask),
        )

    async def _repeat(self, name: str, act: Any) -> None:
        due = time.monotonic()
        for _ in range(self._rounds):
            waited = self._waits.read()
            took = await asyncio.wait_for(act(), LIMIT_S)
            self.took[name].append((took, self._waits.read() - waited))
            due = max(time.monotonic(), due + PACE_S * self._draw.uniform(0.5, 1.5))
            await asyncio.sleep(due - time.monotonic())

    async def _queue(self) -> None:
        tenant = self._tenants.enter(LINE, self._shape.gang)
        await asyncio.wait_for(tenant.queued, LIMIT_S)
        self._waiting.append(tenant)

    async def _free(self) -> float:
        leaving, first = self._draw.choice(self._holders), self._waiting.popleft()
        self._holders.remove(leaving)
        at = await self._tenants.leave(leaving)
        took = await first.running - at
        self._holders.append(first)
        await self._queue()
        return took

    async def _lose(self) -> float:
        tenant = self._draw.choice(self._broken)
        index = self._draw.randrange(self._shape.gang)
        moved = tenant.moved(index)
        at = await self._workers.lose(tenant.slices[index])
        return await moved - at

    async def _ask(self) -> float:
        tenant = self._tenants.enter(FREE, 1)
        took = await tenant.running - tenant.asked_at
        await self._tenants.leave(tenant)
        return took


async def measure(shape: Shape, rounds: int, beats_s: float) -> dict[str, Any]:
    """Returns what one manager does with so many slices."""
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
        return {
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


async def _rest(manager: Manager, seconds: float) -> dict[str, float]:
    """Measures the manager while nothing happens but beats."""
    await asyncio.sleep(3.0)  # until what waiting tenants are told together is told
    began, cpu = time.monotonic(), manager.cpu_s()
    await asyncio.sleep(seconds)
    wall = time.monotonic() - began
    return {"wall_s": wall, "cpu_ratio": (manager.cpu_s() - cpu) / wall}


async def _restart(manager: Manager) -> dict[str, Any]:
    """Measures how everybody comes back to a manager that was killed."""
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


def main() -> None:
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
    for slices in options.slices:
        results.append(asyncio.run(measure(Shape.of(slices), options.rounds, options.beats)))
        results[-1]["load_average"] = os.getloadavg()
        print(json.dumps(results[-1]), flush=True)
    for which in ("all", "undisturbed"):
        print(f"\n{which}")
        for row in rows(results, which):
            print("| " + " | ".join(row) + " |")
    write_result("rm_scale", {"wanted_s": WANTED_S, "sizes": results}, options.out)
    if options.picture:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
