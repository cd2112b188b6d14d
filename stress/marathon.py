"""A million small executions and 100 GB of transfers in one session: memory and handles stay flat.

    python -m stress.marathon [--executions 1000000] [--gigabytes 100] [--laps 200] [--out FILE]

A proxy and JAX, each in its own process. A lap is a share of the executions (every twentieth on all
eight devices, the others on one), then of the transfers: up as a stream, up through the shared
directory and down as a stream, a third each. After a lap everything is released, and both processes
are checked: the proxy's counters must be exactly those after the first lap, and returned data must
equal sent data. Memory may not grow by more than `ALLOWED` from the first quarter of the laps to
the last; the client is JAX, whose growth is reported separately from the proxy's.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from harness.deadlines import deadline
from harness.own_service import ROOT
from harness.processes import ServerProcess
from harness.results import exit_code, measured, write_result
from stress.fuzz.witness import counters_of
from stress.growth import Growth, Held, growth, seconds_of

MB = 1_000_000
_DEADLINE_S = deadline(120.0)
#: Of an array that goes as a stream, and of one that goes through the shared directory.
_STREAMED_BYTES, _SHARED_BYTES = 8 << 20, 16 << 20
_THRESHOLD_BYTES = 12 << 20
_ALL_DEVICES_EACH = 20
#: The allowed growth of the proxy's process from the first quarter to the last. Memory: between two
#: laps what glibc keeps of freed transfers differs by one or two of the largest (16 MiB); a leak of
#: 50 bytes an execution, or of a hundredth of a thousandth of what is transferred, is more over a
#: million and 100 GB. Threads: those of transfers and XLA begin when first needed, and stay.
ALLOWED = Held(threads=8, descriptors=0, resident_mb=36.0)
#: What must be the same after each lap.
_COUNTERS = (
    "open_sessions",
    "open_handles",
    "live_programs",
    "live_arrays",
    "unanswered_requests",
    "host_buffers",
    "host_memory_bytes",
    "device_memory_bytes",
)


class MarathonError(AssertionError):
    """Something came back wrong, was left behind, or grew."""


@dataclasses.dataclass(frozen=True)
class Lap:
    """The work until the end of a lap, and the usage then."""

    seconds: float
    executions: int
    received_mb: int
    sent_mb: int
    proxy: Held
    client: Held
    counters: dict[str, Any]


def run(
    executions: int,
    gigabytes: float,
    laps: int,
    after_lap: Callable[[Lap], None],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> list[Lap]:
    """Runs the laps.

    Args:
      executions: In all.
      gigabytes: Of transfers, both ways, in all.
      laps: How many; each does the same.
      after_lap: Called with each.
      environment: Of both processes, in addition to this one's.

    Raises:
      MarathonError: A value came back wrong, or something is left after a lap.
    """
    done: list[Lap] = []
    share = {"executions": executions // laps, "bytes": int(gigabytes * 1e9) // laps}
    began = time.monotonic()
    with (
        _proxy(environment) as (proxy, address, shared),
        _client(address, shared, environment) as client,
    ):
        for _ in range(laps):
            wrong = client.lap(share)
            if wrong:
                raise MarathonError(f"lap {len(done) + 1}: {wrong}")
            due = (done[0].counters, done[0].proxy.descriptors) if done else None
            counters, held = _at_rest(address, proxy.pid, due)
            lap = Lap(
                round(time.monotonic() - began, 1),
                counters["sps_proxy_dispatches_total"],
                counters["sps_proxy_received_bytes_total"] // MB,
                counters["sps_proxy_sent_bytes_total"] // MB,
                held,
                Held.of(client.pid),
                _left(counters),
            )
            done.append(lap)
            after_lap(lap)
    return done


def _at_rest(
    address: str, pid: int, due: tuple[dict[str, Any], int] | None
) -> tuple[dict[str, Any], Held]:
    """Waits until the usage of the proxy is that of before; the client releases objects gradually.

    Args:
      address: Of the proxy.
      pid: Of the proxy.
      due: The counters after the first lap, and how many descriptors there were; None:
        this is the first, and what does not change any more is taken for it.
    """
    deadline = time.monotonic() + _DEADLINE_S
    seen: list[tuple[dict[str, Any], int]] = []
    while True:
        counters = counters_of(address)
        held = Held.of(pid)
        # (The connection on which the counters came may not be closed yet.)
        seen.append((_left(counters), held.descriptors))
        fewest = min(number for _, number in seen)
        if due is not None:
            rests = seen[-1] == due
        else:
            same = all(left == seen[-1][0] for left, _ in seen[-20:])
            rests = len(seen) >= 20 and same and held.descriptors == fewest
        if rests:
            return counters, held
        if time.monotonic() > deadline:
            raise MarathonError(f"the proxy holds {seen[-1]}, not {due}")
        time.sleep(0.02)


def _left(counters: dict[str, Any]) -> dict[str, Any]:
    left: dict[str, Any] = {name: counters[f"sps_proxy_{name}"] for name in _COUNTERS}
    return left | {"device_memory_bytes": sum(left["device_memory_bytes"].values())}


def verdict(laps: Sequence[Lap]) -> dict[str, dict[str, Growth]]:
    """Returns how much what each process holds has grown."""
    return {
        side: {
            field.name: growth(
                [getattr(getattr(lap, side), field.name) for lap in laps],
                getattr(ALLOWED, field.name),
            )
            for field in dataclasses.fields(Held)
        }
        for side in ("proxy", "client")
    }


def result_of(laps: Sequence[Lap]) -> dict[str, Any]:
    """Returns the record of a run, also of an unfinished one."""
    found = verdict(laps) if len(laps) >= 4 else {}
    last = laps[-1]
    return {
        "seconds": last.seconds,
        "executions": last.executions,
        "transferred_gb": round((last.received_mb + last.sent_mb) / 1000, 2),
        "growth": {
            side: {name: g.to_json() for name, g in of.items()} for side, of in found.items()
        },
        "left_after_each_lap": laps[0].counters,
        "samples": [
            {name: value for name, value in dataclasses.asdict(lap).items() if name != "counters"}
            for lap in laps
        ],
    }


@contextlib.contextmanager
def _proxy(environment: Mapping[str, str]) -> Iterator[tuple[ServerProcess, str, Path]]:
    directory = Path(tempfile.mkdtemp(prefix="sps"))
    shared = directory / "shared"
    (shared / "mine").mkdir(parents=True)
    flags = [
        f"--server_socket={directory}/s",
        "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
        f"--large_transfer_dir={shared}",
        f"--parent_pid={os.getpid()}",
    ]
    try:
        with ServerProcess(
            "shared_pathways_service.servers.proxy", flags, env=dict(environment)
        ) as proxy:
            assert proxy.ready is not None, "\n".join(proxy.lines)
            yield proxy, f"unix:{directory}/s", shared / "mine"
    finally:
        shutil.rmtree(directory)


class _Client:
    """JAX in its own process: one line requests a lap, one answers with its error."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.pid = process.pid
        self._process = process

    def lap(self, share: dict[str, int]) -> str:
        """Runs a lap; returns its error, or an empty text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(share) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise MarathonError(f"the client ended with {self._process.wait()}")
        wrong: str = json.loads(line)
        return wrong


@contextlib.contextmanager
def _client(address: str, shared: Path, environment: Mapping[str, str]) -> Iterator[_Client]:
    command = [sys.executable, "-m", "stress.marathon", "--client", address, str(shared)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield _Client(process)
            assert process.stdin is not None
            process.stdin.close()
            if process.wait(_DEADLINE_S):
                raise MarathonError(f"the client ended with {process.returncode}")
        finally:
            process.kill()


# ---- the client


def serve_laps(address: str, shared: str) -> None:
    """Runs a lap for each line of the standard input."""
    os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
    prefix = "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION"
    os.environ[f"{prefix}_DIRECTORY"] = shared
    os.environ[f"{prefix}_THRESHOLD_BYTES"] = str(_THRESHOLD_BYTES)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.extend import backend
    from jax.extend.backend import ifrt_proxy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from shared_pathways_service.jax_client import internals

    # First: where the package is installed, its plug-in would take this client's place.
    internals.discover_plugins()
    options = ifrt_proxy.ClientConnectionOptions()
    options.initialization_data = {"sps_transfer_dir": Path(shared).name.encode()}
    target = f"grpc://{address}"
    backend.register_backend_factory("proxy", lambda: ifrt_proxy.get_client(target, options))
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_backend_target", target)
    step = jax.jit(lambda x: x + 1)
    split = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
    streamed = np.arange(_STREAMED_BYTES // 4, dtype=np.int32)
    large = np.arange(_SHARED_BYTES // 4, dtype=np.int32)
    on_one, on_all = jnp.zeros((), np.int32), jax.device_put(np.zeros(8, np.int32), split)
    on_device = jax.device_put(streamed)
    counts = {"one": 0, "all": 0, "up": 0, "shared": 0, "down": 0}

    for line in sys.stdin:
        share = json.loads(line)
        for number in range(share["executions"]):
            if number % _ALL_DEVICES_EACH == 0:
                on_all = step(on_all)
                counts["all"] += 1
            else:
                on_one = step(on_one)
                counts["one"] += 1
        wrong = ""
        if (int(on_one), np.asarray(on_all).tolist()) != (counts["one"], [counts["all"]] * 8):
            wrong = f"{on_one} and {on_all} after {counts}"
        for _ in range(_times(share["bytes"], _SHARED_BYTES)):
            _put(large)
        for _ in range(_times(share["bytes"], _STREAMED_BYTES)):
            _put(streamed)
            # A copy: JAX retains fetched data of an array.
            if not np.array_equal(np.asarray(on_device.copy()), streamed):
                wrong = "what was fetched is not what was sent"
        print(json.dumps(wrong), flush=True)


def _times(nbytes: int, each: int) -> int:
    """Returns the number of transfers that make a third of some bytes."""
    return max(1, round(nbytes / 3 / each))


def _put(values: Any) -> None:
    import jax

    # (JAX must not take it for the same constant again.)
    jax.block_until_ready(jax.device_put(values))


def main() -> int:
    """Parses the arguments, runs, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=100.0)
    parser.add_argument("--laps", type=int, default=200)
    parser.add_argument("--out", type=Path, help="Written after each lap, so that little is lost.")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        serve_laps(*arguments.client)
        return 0
    return run_measured(arguments)


@measured()
def run_measured(arguments: argparse.Namespace) -> int:
    """Runs as asked, and writes; returns the exit code."""
    laps: list[Lap] = []

    def after_lap(lap: Lap) -> None:
        laps.append(lap)
        print(dataclasses.replace(lap, counters={}), flush=True)
        write_result("marathon", result_of(laps), arguments.out, {"lap_s": seconds_of(laps)})

    run(arguments.executions, arguments.gigabytes, arguments.laps, after_lap)
    found = verdict(laps)
    print(laps[0].counters)
    for side, of in found.items():
        for name, grown in of.items():
            print(side, name, grown.to_json())
    return exit_code(
        f"{name} of the proxy grew" for name, g in found["proxy"].items() if not g.flat
    )


if __name__ == "__main__":
    sys.exit(main())
