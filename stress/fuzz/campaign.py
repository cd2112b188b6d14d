"""Rounds of random requests against one proxy after another, and their findings."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from harness.processes import ServerProcess
from shared_pathways_service.protocol.ifrt import proxy_pb2
from stress.fuzz.conversation import FuzzError
from stress.fuzz.observer import Observer
from stress.fuzz.rounds import EXAMPLES, ROUNDS, Target, rounds_of, run_once
from stress.fuzz.witness import Witness, check_nothing_left, counters_of
from stress.growth import Growth, Held, growth

_REST_S = 60.0
_MODULE = "stress.fuzz.proxy"
#: Of requests.
KINDS = {
    field.name.removesuffix("_request")
    for field in proxy_pb2.IfrtRequest.DESCRIPTOR.oneofs_by_name["request"].fields
}
#: What a process may hold more in the last quarter of the samples than in the first. Memory: each
#: example has a session of its own, most compile programs, and glibc gives back little of what it
#: took for the largest; threads: of uploads and downloads, which end only with the proxy (256).
_ALLOWED = Held(threads=40, descriptors=0, resident_mb=100.0)


class Campaign:
    """Rounds against one proxy after the other: another one after each finding.

    Args:
      seed: Of the rounds' seeds.
      tell: Called with lines of progress.
    """

    def __init__(self, seed: int, tell: Callable[[str], None]) -> None:
        self.seed = seed
        self.tell = tell
        self.began = time.monotonic()
        self.done: Counter[str] = Counter()
        self.findings: list[dict[str, Any]] = []
        self.requests: Counter[str] = Counter()
        self.checked = 0
        self.slowest_s = 0.0
        # Of each proxy.
        self.samples: list[list[tuple[float, Held]]] = []
        self._seeds = random.Random(seed)
        self._looks: list[dict[str, Any]] = []

    def found(self, error: FuzzError) -> None:
        """Records an error of `run` or `round`, with an observation of the proxy at that time."""
        self.findings.append({"what": str(error).splitlines(), "proxy": self._looks})
        self.tell(f"FOUND {error}")

    def passed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def run(self, seconds: float, after_rest: Callable[[], None] = lambda: None) -> None:
        """Runs rounds of every kind for a number of seconds.

        Args:
          seconds: Each kind has one round at least.
          after_rest: Called whenever all came to rest.

        Raises:
          FuzzError: The proxy misbehaved.
        """
        self.samples.append([])
        with started_proxy() as (proxy, target), contextlib.ExitStack() as stack:
            witness = Witness(target.address)
            stack.callback(witness.close)
            rested = self.passed_s()
            try:
                for name in itertools.cycle(ROUNDS):
                    self.round(name, self._seeds.getrandbits(32), proxy, target, witness)
                    over = self.passed_s() >= seconds and name == ROUNDS[-1]
                    if over or self.passed_s() >= rested + _REST_S:
                        self._rest(proxy, target, witness)
                        after_rest()
                        if over:
                            break
                        witness.resume()
                        rested = self.passed_s()
            finally:
                self.checked += witness.checked
                self.slowest_s = max(self.slowest_s, witness.slowest_s)
            for kind, count in counters_of(target.address)["sps_proxy_requests_total"].items():
                self.requests[kind] += count
            witness.close()
            if proxy.stop() != 0:
                raise FuzzError("the proxy did not end well:\n" + _tail(proxy))
        grown = {name: g for name, g in self.growth(-1).items() if not g.flat}
        if grown:
            raise FuzzError(f"what the proxy holds grows: {grown}")

    def round(
        self, name: str, seed: int, proxy: ServerProcess, target: Target, witness: Witness
    ) -> None:
        """Runs one round, and looks whether all is well."""
        self._looks = target.observer.looks
        try:
            run_once(rounds_of(target)[name], seed)
            if psutil.Process(proxy.pid).status() == psutil.STATUS_ZOMBIE:
                raise FuzzError(f"the proxy ended with {proxy.wait()}")
            with target.observer.explaining():
                witness.check()
        except Exception as error:
            example = "\n".join(getattr(error, "__notes__", ()))
            raise FuzzError(
                f"--round {name} --seed {seed}: {error!r}\n{example}\n{_tail(proxy)}"
            ) from error
        self.done[name] += EXAMPLES

    def _rest(self, proxy: ServerProcess, target: Target, witness: Witness) -> None:
        with target.observer.explaining():
            witness.pause()
            check_nothing_left(target.address, target.deadline_s)
        held = Held.of(proxy.pid)
        self.samples[-1].append((round(self.passed_s(), 1), held))
        self.tell(f"{self.passed_s():6.0f} s {dict(self.done)} {held}")

    def growth(self, proxy: int) -> dict[str, Growth]:
        """Compares the usage of a proxy; empty if there are too few samples."""
        samples = [held for _, held in self.samples[proxy]]
        if len(samples) < 8:
            return {}
        return {
            field.name: growth(
                [getattr(held, field.name) for held in samples], getattr(_ALLOWED, field.name)
            )
            for field in dataclasses.fields(Held)
        }

    def result(self) -> dict[str, Any]:
        """Returns the record of the campaign."""
        return {
            "seconds": round(self.passed_s()),
            "seed": self.seed,
            "findings": self.findings,
            "examples": dict(self.done),
            "requests": dict(sorted(self.requests.items())),
            "kinds_never_sent": sorted(KINDS - set(self.requests)),
            "witness": {"checked": self.checked, "slowest_s": round(self.slowest_s, 2)},
            "proxies": [
                {
                    "growth": {k: g.to_json() for k, g in self.growth(index).items()},
                    "samples": [{"s": at, **dataclasses.asdict(held)} for at, held in samples],
                }
                for index, samples in enumerate(self.samples)
            ],
        }


@contextlib.contextmanager
def started_proxy() -> Iterator[tuple[ServerProcess, Target]]:
    """Runs a proxy of two slices, and deletes its files afterwards."""
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        shared = Path(directory, "shared")
        shared.mkdir()
        address, stacks = f"unix:{directory}/s", Path(directory, "stacks")
        flags = [
            str(stacks),
            f"--server_socket={directory}/s",
            "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
            f"--last_requests_file={directory}/last",
            f"--large_transfer_dir={shared}",
            f"--parent_pid={os.getpid()}",
            # What half-valid requests ask for must not take the machine's memory.
            f"--host_memory_limit_bytes={256 << 20}",
            f"--device_memory_limit_bytes={256 << 20}",
            "--max_handles=100000",
        ]
        with ServerProcess(_MODULE, flags) as proxy:
            assert proxy.ready is not None, _tail(proxy)
            yield proxy, Target(address, shared, Observer(proxy.pid, address, stacks))


def _tail(proxy: ServerProcess) -> str:
    return "\n".join(proxy.lines[-30:])
