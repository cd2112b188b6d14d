"""Seconds until tenants of one service are notified, placed, and freed of each other."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from harness.own_service import ROOT, own_service
from harness.results import exit_code, measured, write_result

#: The aims, in seconds.
AIMS = {
    "refused, holders named": 2.0,
    "placed after the holder leaves": 1.0,
    "placed after kill -9 of the holder": 5.0,
    "kill -9 of a worker to DATA_LOSS at fetch": 1.0,
    "kill -9 of a worker to placed on the spare": 2.0,
}

_PRELUDE = """
import json, sys, time
import jax
from shared_pathways_service import errors, isc_pathways
def say(**data):
    print(json.dumps(data), flush=True)
def connect(**more):
    return isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}, **more)
"""
_HOLD = """
with connect():
    say(ready=True)
    sys.stdin.readline()
    left = time.time()
say(left=left)
"""
_REFUSED = """
began = time.time()
try:
    connect().start()
except errors.SlicesTaken as error:
    say(refused=time.time() - began, holders=error.holders)
"""
_WAIT = """
def heard(event):
    if event.kind == "tenant.queued":
        say(queued=event.data["position"])
with connect(queue_timeout=60, on_event=heard):
    say(placed=time.time())
"""
_FETCH = """
import numpy as np, queue
placed = queue.SimpleQueue()
def heard(event):
    if event.kind == "slice.placed":
        placed.put(time.time())
with connect(on_event=heard):
    mine = jax.device_put(np.arange(8.0), jax.devices()[0])
    jax.block_until_ready(mine)
    while not placed.empty():
        placed.get()
    say(ready=True)
    while True:
        try:
            np.asarray(mine + 1)
        except jax.errors.JaxRuntimeError as error:
            assert "DATA_LOSS" in str(error), error
            break
    lost = time.time()
    say(lost=lost, placed=placed.get(timeout=60))
"""


class _Client:
    def __init__(self, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PRELUDE + source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )

    def hear(self, word: str) -> Any:
        assert self.process.stdout
        for line in self.process.stdout:
            said = json.loads(line)
            if word in said:
                return said[word]
        raise RuntimeError(f"a client ended before it said {word}")

    def let_go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.communicate(timeout=60)


def _sps_status() -> dict[str, Any]:
    command = [sys.executable, "-m", "shared_pathways_service.cli", "status", "--json"]
    done = subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    status: dict[str, Any] = json.loads(done.stdout)
    return status


def _kill_worker_of_slice(virtual_index: int) -> float:
    status = _sps_status()
    [lost] = [s["id"] for s in status["slices"] if s.get("virtual_index") == virtual_index]
    [pid] = [p["pid"] for p in status["processes"] if p.get("slice") == lost]
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    return killed


def measure() -> dict[str, float]:
    """Runs every case once."""
    found: dict[str, float] = {}
    holder = _Client(_HOLD)
    holder.hear("ready")
    third = _Client(_REFUSED)
    found["refused, holders named"] = third.hear("refused")
    third.end()

    waiter = _Client(_WAIT)
    waiter.hear("queued")
    holder.let_go()
    left = holder.hear("left")
    found["placed after the holder leaves"] = waiter.hear("placed") - left
    holder.end()
    waiter.end()

    holder = _Client(_HOLD)
    holder.hear("ready")
    waiter = _Client(_WAIT)
    waiter.hear("queued")
    killed = time.time()
    holder.process.kill()
    found["placed after kill -9 of the holder"] = waiter.hear("placed") - killed
    holder.end()
    waiter.end()

    fetcher = _Client(_FETCH)
    fetcher.hear("ready")
    killed = _kill_worker_of_slice(0)
    assert fetcher.process.stdout
    told = json.loads(fetcher.process.stdout.readline())
    found["kill -9 of a worker to DATA_LOSS at fetch"] = told["lost"] - killed
    found["kill -9 of a worker to placed on the spare"] = told["placed"] - killed
    fetcher.end()
    return found


@measured()
def main() -> int:
    """Parses the arguments, measures, prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        with own_service("tpuv6e:2x2=2", spares=1):
            rounds.append(measure())
    print(f"{'seconds':46}{'median':>9}{'most':>9}{'aim':>7}")
    result, repeats = {}, {}
    for name, aim in AIMS.items():
        values = repeats[name] = [found[name] for found in rounds]
        result[name] = {"median": statistics.median(values), "most": max(values), "aim": aim}
        print(f"{name:46}{statistics.median(values):9.3f}{max(values):9.3f}{aim:7.1f}")
    write_result("tenancy", {"rounds": arguments.rounds, "seconds": result}, arguments.out, repeats)
    return exit_code(name for name, of in result.items() if of["median"] > of["aim"])


if __name__ == "__main__":
    sys.exit(main())
