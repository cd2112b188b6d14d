"""The resource manager's core on a simulated clock: cost per event, and whether size matters.

The state is fragmented (slices are held by tenants of 1 to 4 in random places). Either every slice
is held and 1,000 tenants wait, or a tenth of the slices is free and no tenant waits. Then tenants
end and new ones start, workers die and return, streams break and reconnect, workers send
heartbeats. Each event is timed by itself, in one process and one run, by the thread's processor
time, so other work of the machine does not count. The cost of reading that clock, a system call, is
measured and subtracted. The average is measured separately: the same events go into a new core, and
only the total is timed. All of that is repeated with other seeds; the figures are medians.

    python -m benchmarks.rm_core --out rm_core.json
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.results import exit_code, measured, write_result
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.tenants import SlicePlaced, TenantRunning
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.core import ResourceManagerCore

#: At most: the growth of a placement's 99th percentile, and microseconds per event.
RATIO, EVENT_US = 2.0, 20.0
KIND = InstanceType.parse("tpuv6e:2x2")
#: Simulated seconds between two events.
STEP_S = 0.0005
#: The share of slices that are requested if no tenant is to wait: the rest replaces lost ones.
FILLED = 0.9
#: The simulated clock at the start.
START = 1e9


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Times in microseconds.

    Attributes:
      placements: Events that placed somebody.
      us_per_event: Of all events, beats and ticks included.
    """

    slices: int
    queued: int
    events: int
    placements: int
    placement_p50_us: float
    placement_p99_us: float
    us_per_event: float


class Load:
    """A core under random load."""

    def __init__(self, slices: int, queued: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = START
        self.clock_ns = clock_cost_ns()
        self.queued = queued
        self.made = 0
        self.beaten = 0
        self.running: set[str | None] = set()
        self.alive: list[str] = []
        self.wants: dict[str, int] = {}
        self.wanted = 0
        self.placements: list[int] = []
        self.events: list[tuple[m.ResourceManagerEvent, float]] = []
        self.incarnations = ["0"] * slices
        self.core = ResourceManagerCore(RmConfig(slices={KIND: slices}), None, START)
        for index in range(slices):
            self.join(index)
        while not self.crowded:
            self.ask()

    @property
    def waiting(self) -> int:
        return len(self.alive) - len(self.running)

    @property
    def crowded(self) -> bool:
        """Whether a tenant must end before others start."""
        if self.queued:
            return self.waiting > self.queued
        return self.wanted > FILLED * len(self.incarnations)

    def handle(self, event: m.ResourceManagerEvent) -> None:
        self.now += STEP_S
        due = self.core.next_deadline()
        if due is not None and due <= self.now:
            self.time(m.Tick())
        self.time(event)

    def time(self, event: m.ResourceManagerEvent) -> None:
        self.events.append((event, self.now))
        began = time.thread_time_ns()
        instructions = self.core.handle(event, self.now)
        self.core.next_deadline()
        took = max(0, time.thread_time_ns() - began - self.clock_ns)
        announced = [one.make() for one in instructions if isinstance(one, m.Announce)]
        self.running.update(one.tenant for one in announced if isinstance(one, TenantRunning))
        if any(isinstance(one, SlicePlaced) for one in announced):
            self.placements.append(took)

    # ---- events

    def join(self, index: int) -> None:
        event = m.WorkerJoined(
            slice_id=f"slice-{index}",
            instance_type=KIND,
            host_index=0,
            incarnation=self.incarnations[index],
        )
        self.handle(event)

    def beat(self) -> None:
        index = self.beaten = (self.beaten + 1) % len(self.incarnations)
        event = m.WorkerBeat(
            slice_id=f"slice-{index}", host_index=0, incarnation=self.incarnations[index]
        )
        self.handle(event)

    def lose_and_regain(self) -> None:
        index = self.random.randrange(len(self.incarnations))
        event = m.WorkerEnded(
            slice_id=f"slice-{index}",
            host_index=0,
            incarnation=self.incarnations[index],
            reason="killed",
        )
        self.handle(event)
        self.incarnations[index] = str(int(self.incarnations[index]) + 1)
        self.join(index)

    def asked(self, name: str, wants: int, claims: tuple[m.Claim, ...] = ()) -> m.TenantAsked:
        return m.TenantAsked(
            request=TenantRequest(
                name=name,
                virtual_slices=(KIND,) * wants,
                priority=self.random.choice((0, 0, 0, 1)),
                queue_timeout_s=float("inf"),
                user=name,
                host="host",
            ),
            incarnation=name,
            claims=claims,
        )

    def ask(self) -> None:
        self.made += 1
        name = f"tenant-{self.made}"
        self.alive.append(name)
        self.wants[name] = self.random.randint(1, 4)
        self.wanted += self.wants[name]
        self.handle(self.asked(name, self.wants[name]))

    def release(self) -> None:
        index = self.random.randrange(len(self.alive))
        self.alive[index], self.alive[-1] = self.alive[-1], self.alive[index]
        name = self.alive.pop()
        self.running.discard(name)
        self.wanted -= self.wants.pop(name)
        self.handle(m.TenantReleased(tenant=name, reason="done"))

    def break_and_mend(self) -> None:
        name = self.random.choice(self.alive)
        self.handle(m.TenantStreamEnded(tenant=name, incarnation=name))
        self.handle(self.asked(name, self.wants[name]))

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            what = self.random.random()
            if what < 0.2:
                self.lose_and_regain()
            elif what < 0.3:
                self.break_and_mend()
            elif what < 0.65:
                self.beat()
            elif self.crowded:
                self.release()
            else:
                self.ask()


def clock_cost_ns() -> int:
    """Returns what of a measured time is the clock's own, in nanoseconds."""
    readings = [time.thread_time_ns() for _ in range(10_001)]
    return int(statistics.median(b - a for a, b in itertools.pairwise(readings)))


def measure(slices: int, queued: int, rounds: int, seed: int) -> Result:
    """Builds a fragmented state and puts it under load."""
    load = Load(slices, queued, seed)
    load.run(rounds // 10)
    load.placements.clear()
    first = len(load.events)
    gc.collect()
    gc.freeze()
    load.run(rounds)
    gc.unfreeze()
    load.core.validate_state()
    took = replay(slices, load.events, first)
    placements = sorted(load.placements)
    return Result(
        slices=slices,
        queued=load.waiting,
        events=len(load.events) - first,
        placements=len(placements),
        placement_p50_us=placements[len(placements) // 2] / 1e3,
        placement_p99_us=placements[len(placements) * 99 // 100] / 1e3,
        us_per_event=took / (len(load.events) - first) * 1e6,
    )


def middle(results: Sequence[Result]) -> Result:
    """Returns the median of each figure of results of one size."""
    rows = [dataclasses.asdict(one) for one in results]
    return Result(**{name: statistics.median_low([row[name] for row in rows]) for name in rows[0]})


def replay(slices: int, events: list[tuple[m.ResourceManagerEvent, float]], first: int) -> float:
    """Returns the processor seconds that a new core takes for the events from `first` on."""
    core = ResourceManagerCore(RmConfig(slices={KIND: slices}), None, START)
    for event, now in events[:first]:
        core.handle(event, now)
    timed = events[first:]
    gc.collect()
    gc.freeze()
    began = time.process_time()
    for event, now in timed:
        core.handle(event, now)
        core.next_deadline()
    took = time.process_time() - began
    gc.unfreeze()
    return took


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--rounds", type=int, default=30_000)
    parser.add_argument("--queued", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3, help="each with the next seed")
    options = parser.parse_args()
    repeats = [
        [
            measure(slices, queued, options.rounds, options.seed + number)
            for queued in (0, options.queued)
            for slices in (1_000, 10_000)
        ]
        for number in range(options.repeats)
    ]
    results = [middle(ones) for ones in zip(*repeats, strict=True)]
    ratios_of = {
        small.queued: [
            ones[index + 1].placement_p99_us / ones[index].placement_p99_us for ones in repeats
        ]
        for index, small in enumerate(results)
        if index % 2 == 0
    }
    table = Table("slices", "queued", "events", "placement p50", "p99", "us/event")
    for one in results:
        table.add_row(
            f"{one.slices:,}",
            f"{one.queued:,}",
            f"{one.events:,}",
            f"{one.placement_p50_us:.1f} us",
            f"{one.placement_p99_us:.1f} us",
            f"{one.us_per_event:.1f}",
        )
    console = Console()
    console.print(table)
    ratios = {queued: statistics.median(of) for queued, of in ratios_of.items()}
    for queued, ratio in ratios.items():
        what = f"with {queued:,} waiting, 10,000 slices to 1,000"
        console.print(f"placement p99 {what}: {ratio:.2f}x (aim: at most {RATIO:g}x)")
    slowest = max(one.us_per_event for one in results if not one.queued)
    console.print(
        f"an event, no tenant waiting: {slowest / EVENT_US:.2f} of the {EVENT_US:g} us it may take"
    )
    data = {
        "sizes": [dataclasses.asdict(one) for one in results],
        "placement_p99_ratio": max(ratios.values()),
        "us_per_event": slowest,
    }
    samples = {f"placement_p99_ratio, {queued} wait": of for queued, of in ratios_of.items()}
    samples |= {
        f"us_per_event, {size.slices} slices, {size.queued} wait": [
            one.us_per_event for one in ones
        ]
        for size, ones in zip(results, zip(*repeats, strict=True), strict=True)
    }
    write_result("rm_core", data, options.out, samples)
    aims = {
        "placement p99": max(ratios.values()) <= RATIO,
        "us per event": slowest <= EVENT_US,
    }
    return exit_code(name for name, is_met in aims.items() if not is_met)


if __name__ == "__main__":
    sys.exit(main())
