"""A service of many slices: its resource manager, its workers, and what happens to them."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rm_scale_tenants import LIMIT_S, Tenant, Tenants
from benchmarks.run_delay import RunDelay
from harness.own_service import ROOT

LINE, BREAKS, FREE = "tpuv6e:2x2", "tpuv5:2x2x1", "tpuv5e:2x2"
#: (A connection has 100 streams at a time, and some tenants come before others are gone.)
HOLDERS, TENANTS, TENANT_CONNECTIONS = 800, 1_000, 12
#: Streams of a connection to the workers.
STREAMS = 100
#: The command that is measured; a variable, so that a profiler can run it.
MANAGER = os.environ.get(
    "BENCH_MANAGER", "-m shared_pathways_service.servers.resource_manager"
).split()
#: Seconds between two triggers of one kind.
PACE_S = 0.15


@dataclasses.dataclass(frozen=True)
class Shape:
    """The distribution of a number of slices.

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
        """Returns how many slices did not return before it granted again; None: it waits."""
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
