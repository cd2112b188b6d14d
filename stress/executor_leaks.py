"""A thousand losses of executors, and a hundred thousand programs, in one connection.

    python -m stress.executor_leaks [--losses 1000] [--programs 100000] [--minutes 60] [--out FILE]

An embedded service with the engine `distributed` has two slices of one host and a spare. A program
of plain JAX is on both slices. A lap: it runs programs on each slice, of which every tenth is over
both, compiles one, copies an array from slice to slice, and then the executors of both slices are
killed, one after the other, each time until a program over both slices is right again. After a lap
nothing of it may be left: memory, threads and descriptors of the resource manager, the supervisor,
each worker, the proxy and JAX, the processes of the service, and its files and directories, also in
shared memory, must not grow from the first quarter of the laps to the last by more than `ALLOWED`.
The result is written after each lap, for as many as there are.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import psutil

from harness.deadlines import deadline, wait_until
from harness.own_service import own_directories
from harness.programs import Program, program, service, status
from harness.results import exit_code, measured, write_result
from shared_pathways_service.runtime.settings import Settings
from stress.growth import Growth, Held, growth, seconds_of

__all__ = ["ALLOWED", "Lap", "grown", "run"]

_KIND = "tpuv6e:2x2"
_SLICES = 2
#: The allowed growth of each process from the first quarter of the laps to the last. Threads:
#: those of transfers, gRPC and XLA begin when first needed, and stay; the proxy's pools take 400
#: losses to get there. Memory: of what glibc keeps of what was freed, which it returns late with
#: many threads. Over a thousand losses, a thread in twenty exceeds this, or 70 kB each.
ALLOWED = Held(threads=32, descriptors=8, resident_mb=48.0)
#: That of the number of the service's processes, and of its files.
_ALLOWED_COUNT = 2
#: The first one, and four quarters.
_LEAST_LAPS = 5

#: Runs after the prelude of `harness.programs`. Each line of standard input is an order: a number
#: of programs, or the virtual slice that is lost by now, or "leave".
CLIENT = (
    f"DEADLINE_S = {deadline(150.0)}\n"
    """
import gc, itertools
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    slices = [[d for d in jax.devices() if d.slice_index == index] for index in range(2)]
    shardings = [
        NamedSharding(Mesh(np.array(devices), ("chip",)), P("chip"))
        for devices in (*slices, slices[0] + slices[1])
    ]
    small = np.arange(64, dtype=np.float32).reshape(16, 4)
    large = np.arange(1 << 18, dtype=np.float32).reshape(16, -1)  # 1 MiB
    # Each device has a part, so the sum is a collective of all their hosts.
    total = jax.jit(lambda x: (x * x).sum())
    expected = float((small * small).sum())
    numbers = itertools.count(2)

    def check(index):
        found = float(np.asarray(total(jax.device_put(small, shardings[index]))))
        assert found == expected, (found, expected)

    def until_right(index):
        limit = time.monotonic() + DEADLINE_S
        while True:
            try:
                return check(index)
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
                assert time.monotonic() < limit, error
                time.sleep(0.02)

    def run(count):
        on = [jax.device_put(small, sharding) for sharding in shardings]
        for number in range(count):
            made = total(on[2 if number % 10 == 0 else number % 2])
            if number % 20 == 0:
                assert float(np.asarray(made)) == expected
        factor = next(numbers)
        scaled = jax.jit(lambda x: x * factor)(on[0])
        assert np.array_equal(np.asarray(scaled), small * factor)
        moved = jax.device_put(jax.device_put(large, shardings[0]), shardings[1])
        assert np.array_equal(np.asarray(moved), large)

    for index in range(3):
        until_right(index)
    say("connected")
    for line in sys.stdin:
        order = json.loads(line)
        if order == "leave":
            break
        if "programs" in order:
            run(order["programs"])
        else:
            until_right(order["lost"])
            until_right(2)
            if order["clears"]:
                jax.clear_caches()
                gc.collect()
        say("done")
"""
)


@dataclasses.dataclass(frozen=True)
class Lap:
    """The work until the end of a lap, and the usage then.

    Attributes:
      held: That of each process, by its role; of workers, with the number of each.
      processes: How many the service has, with its executors.
      files: How many files and directories it has in its own ones.
    """

    seconds: float
    losses: int
    programs: int
    held: Mapping[str, Held]
    processes: int
    files: int


def run(
    losses: int, programs: int, laps: int, after_lap: Callable[[Lap], None], minutes: float = 60.0
) -> list[Lap]:
    """Runs the laps; no lap begins after so many minutes.

    Args:
      losses: In all, of both slices in turn.
      programs: In all, a multiple of the losses.
      laps: After how many equal parts the usage is looked at: a divisor of the losses.
      after_lap: Called with each.

    Raises:
      AssertionError: A program did not go on, or its result was wrong.
      ValueError: One number is no multiple of the other.
    """
    if losses % laps or programs % losses:
        raise ValueError(f"{losses} losses are no multiple of {laps} laps, or {programs} of them")
    if laps < _LEAST_LAPS:
        raise ValueError(f"{laps} laps tell no growth: at least {_LEAST_LAPS} are needed")
    began = time.monotonic()
    done: list[Lap] = []
    with _running() as (directories, client):
        for number in range(laps):
            if time.monotonic() - began > 60 * minutes:
                break
            for index in range(losses // laps):
                _order(client, {"programs": programs // losses})
                # (Before the usage is looked at, too.)
                _lose(client, index % _SLICES, clears=(index + 1) % 10 == 0)
            wait_until("all slices to be ready", _is_whole, 300)
            done.append(
                Lap(
                    round(time.monotonic() - began, 1),
                    (number + 1) * (losses // laps),
                    (number + 1) * (losses // laps) * (programs // losses),
                    *_usage(directories, client),
                )
            )
            after_lap(done[-1])
    return done


def grown(laps: Sequence[Lap], allowed: Held = ALLOWED) -> dict[str, Growth]:
    """Returns the growth of each figure; the first lap compiles, and begins most threads."""
    rest = laps[1:]
    found = {
        f"{role} {field.name}": growth(
            [getattr(lap.held[role], field.name) for lap in rest], getattr(allowed, field.name)
        )
        for role in rest[0].held
        for field in dataclasses.fields(Held)
    }
    for name in ("processes", "files"):
        found[name] = growth([getattr(lap, name) for lap in rest], _ALLOWED_COUNT)
    return found


@contextlib.contextmanager
def _shared_memory() -> Iterator[Path]:
    """Has services put their shared memory in a directory of its own."""
    within = Settings.load().shared_memory_dir
    with (
        tempfile.TemporaryDirectory(prefix="sps-stress-", dir=within) as made,
        mock.patch.dict(os.environ, SPS_SHARED_MEMORY_DIR=made),
    ):
        yield Path(made)


@contextlib.contextmanager
def _running() -> Iterator[tuple[tuple[Path, Path], Program]]:
    with (
        own_directories() as scratch,
        _shared_memory() as shared,
        service(f"{_KIND}={_SLICES}", spares=1, arguments=("--engine", "distributed")),
    ):
        with program(CLIENT) as client:
            client.expect("connected")
            yield (scratch, shared), client
            client.tell(json.dumps("leave"))
            assert client.wait() == 0
        wait_until("all executors to end", lambda: not status()["executors"])


def _order(client: Program, order: Mapping[str, Any]) -> None:
    client.tell(json.dumps(order))
    client.expect("done", 300)


def _lose(client: Program, index: int, *, clears: bool) -> None:
    seen = status()
    held = next(one["id"] for one in seen["slices"] if one["virtual_index"] == index)
    executor = next(one["pid"] for one in seen["executors"] if one["slice"] == held)
    os.kill(executor, signal.SIGKILL)
    _order(client, {"lost": index, "clears": clears})


def _is_whole() -> bool:
    seen = status()
    return (
        len(seen["slices"]) == _SLICES + 1
        and all(one["state"] == "ready" for one in seen["slices"])
        and len(seen["executors"]) == _SLICES
    )


def _usage(directories: Sequence[Path], client: Program) -> tuple[dict[str, Held], int, int]:
    agents = psutil.Process(client.pid).children(recursive=True)
    pids = {"client": [client.pid], "agent": [agent.pid for agent in agents]}
    for one in status()["processes"]:
        pids.setdefault(one["role"], []).append(one["pid"])
    held = {
        role if len(own) == 1 else f"{role} {number}": Held.of(pid)
        for role, own in pids.items()
        for number, pid in enumerate(own)
    }
    processes = psutil.Process(pids["supervisor"][0]).children(recursive=True)
    files = [path for within in directories for path in within.rglob("*")]
    return held, len(processes), len(files)


def _line(lap: Lap) -> str:
    held = "  ".join(
        f"{role} {of.resident_mb:.0f} MB {of.threads} threads {of.descriptors} fds"
        for role, of in lap.held.items()
    )
    return (
        f"{lap.seconds:8.0f} s {lap.losses:6} losses {lap.programs:8,} programs  "
        f"{lap.processes} processes {lap.files} files  {held}"
    )


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--losses", type=int, default=1000)
    parser.add_argument("--programs", type=int, default=100_000)
    parser.add_argument("--laps", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=60.0, help="no lap begins later")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    asked = parser.parse_args()
    laps: list[Lap] = []

    def after_lap(lap: Lap) -> None:
        laps.append(lap)
        print(_line(lap), flush=True)
        if len(laps) >= _LEAST_LAPS:
            result = {"asked": {"losses": asked.losses, "programs": asked.programs}}
            took = {"lap_s": seconds_of(laps)}
            write_result("executor_leaks", {**result, **_summary(laps)}, asked.out, took)

    run(asked.losses, asked.programs, asked.laps, after_lap, asked.minutes)
    if len(laps) < _LEAST_LAPS:
        return exit_code([f"{len(laps)} laps tell no growth: at least {_LEAST_LAPS} are needed"])
    found = grown(laps)
    for name, of in found.items():
        print(f"{name:<32}{of.first:10.1f}{of.last:10.1f}  {'flat' if of.flat else 'grown !'}")
    return exit_code(f"{name} grew" for name, of in found.items() if not of.flat)


def _summary(laps: Sequence[Lap]) -> dict[str, Any]:
    return {
        "losses": laps[-1].losses,
        "programs": laps[-1].programs,
        "seconds": laps[-1].seconds,
        "growth": {name: of.to_json() for name, of in grown(laps).items()},
        "laps": [dataclasses.asdict(lap) for lap in laps],
    }


if __name__ == "__main__":
    sys.exit(main())
