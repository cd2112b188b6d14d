"""Two machines, one home: services and machines are killed while both run sessions and jobs.

    python -m stress.shared_home [--minutes 10] [--seed 1] [--out result.json]

Each machine is a namespace with a boot of its own. On each, one after the other and drawn at
random: a session begins, or ends; a job is submitted, under one of few names, or cancelled; `sps
list`, `sps reap` and `sps run` run. All the while, supervisors are killed and machines fail at
random moments, and come back with another boot.

The promises: no job runs twice, nor more often than its retries allow, nor on another machine than
that which took it; no record contradicts what the job's program noted; a session whose machine and
service lived computes until it is told to end, and is listed on both machines, as are jobs; each
command succeeds, unless it was killed; and what failed machines left is cleared once it was silent.
Ends with 1 if one was broken.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.deadlines import deadline, wait_until
from harness.embedded import journal
from harness.machines import is_possible
from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.runtime.embedded.job_files import JobFiles
from shared_pathways_service.runtime.settings import Settings
from stress.shared_home.actors import Machine, World
from stress.shared_home.boots import Boot
from stress.shared_home.jobs import Jobs, Submission, make_silent

#: Seconds between two kills on average, on a usual machine; and the part of them in which a machine
#: fails.
_KILLS_S = 12.0
_FAILURES = 0.3
#: The part of jobs that take minutes, in a run of so many seconds at least.
_LONG_JOBS = 0.2
_LONG_S = 240.0
#: Seconds of services to notice that all has ended.
_ENDS_S = 60.0


def measure(seconds: float, seed: int) -> dict[str, Any]:
    """Returns what was done, and which promises were broken."""
    with own_directories() as scratch:
        work = scratch / "work"
        work.mkdir()
        faults: list[str] = []
        jobs = Jobs(JobFiles(Settings.load().state_dir), work, faults.append)
        world = World(scratch, work, jobs, faults, _LONG_JOBS if seconds >= _LONG_S else 0.0)
        machines = [Machine(name, world, seed) for name in ("here", "there")]
        try:
            _disturb(machines, seconds, seed)
            _end(machines, world)
            faults += jobs.faults()
        except AssertionError as error:
            faults.append(str(error))
        finally:
            for one in machines:
                one.boot.fail()
            for session in world.sessions:
                session.end()
        states = collections.Counter(job.state for job in jobs.all())
        return {
            "seconds": seconds,
            "seed": seed,
            "kills": dict(sorted(world.kills.items())),
            "done": dict(sorted(world.done.items())),
            "jobs": dict(sorted(states.items())),
            "broken": faults,
        }


def _disturb(machines: list[Machine], seconds: float, seed: int) -> None:
    """Lets machines live, and kills what runs on them."""
    draw, until, stop = random.Random(seed), time.monotonic() + seconds, threading.Event()
    with ThreadPoolExecutor(len(machines)) as pool:
        lives = [pool.submit(one.live, stop) for one in machines]
        try:
            while (left := until - time.monotonic()) > 0 and not any(life.done() for life in lives):
                stop.wait(min(left, draw.expovariate(1 / deadline(_KILLS_S))))
                one = draw.choice(machines)
                if draw.random() < _FAILURES:
                    one.restart()
                else:
                    one.kill_service()
        finally:
            stop.set()
        for life in lives:
            life.result()


def _end(machines: list[Machine], world: World) -> None:
    """Lets all end that still can, and clears what failed machines left."""
    with ThreadPoolExecutor(len(machines)) as pool:

        def on_each(work: Callable[[Machine], object]) -> None:
            list(pool.map(work, machines))

        # The services take over what was active.
        on_each(Machine.use)
        boots = [one.boot for one in machines]

        def jobs() -> list[Submission]:
            return [job for job in world.jobs.look() if job.boot in boots]

        _wait_for_end("jobs", jobs, boots, sum(job.longest_s for job in jobs()))
        taken_at = max((job.cancelled_at or 0.0 for job in world.jobs.all()), default=0.0)
        wait_until("the ends of jobs taken over", lambda: time.time() > taken_at)
        for work in (Machine.reap, Machine.list, Machine.tell_to_end):
            on_each(work)
        here = {boot.boot_id for boot in boots}

        def sessions() -> list[Entry]:
            return [one for one in journal() if one.agent.start.partition("/")[0] in here]

        _wait_for_end("sessions", sessions, boots)
        left = world.jobs.look()
        for job in left:
            on_each(lambda one, job=job: one.try_to_cancel(job))  # type: ignore[misc]
        for path in (Settings.load().state_dir / "journal").glob("*.json"):
            make_silent(path)
        for job in left:
            world.jobs.make_silent(job)
        on_each(Machine.reap)
        for job in left:
            on_each(lambda one, job=job: one.cancel_silent(job))  # type: ignore[misc]
        on_each(Machine.list)
    world.faults += [f"{entry} is left in the journal" for entry in journal()]
    world.faults += [f"{job} is still active" for job in world.jobs.look()]


def _wait_for_end(
    what: str, left: Callable[[], Sequence[object]], boots: Sequence[Boot], seconds: float = 0.0
) -> None:
    """Waits until nothing is left, for some seconds beside those that it needs."""
    try:
        wait_until(f"the ends of all {what}", lambda: not left(), seconds=_ENDS_S + seconds)
    except AssertionError as error:
        reports = [boot.report() for boot in boots]
        raise AssertionError("\n".join([f"{error}: {[*map(str, left())]}", *reports])) from None


def show(result: Mapping[str, Any]) -> None:
    """Prints the summary."""
    for part in ("kills", "done", "jobs"):
        for what, count in result[part].items():
            print(f"{part:<6}{what:<24}{count:>6}")
    print(f"broken promises: {len(result['broken'])} (aim: 0)")


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    if not is_possible():
        parser.error("needs Linux, util-linux and a user who may make namespaces")
    result = measure(60.0 * options.minutes, options.seed)
    show(result)
    write_result("shared_home", result, options.out)
    return exit_code(result["broken"])


if __name__ == "__main__":
    sys.exit(main())
