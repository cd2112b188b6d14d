"""How long connect() takes: to a service that runs, and with the service's own start.

    python -m benchmarks.connect [--rounds 5] [--out result.json]

Each round is a Python process of its own. "beside jax" is connect() less what importing JAX took
in the same process, while the agent worked; "again" is a second connect() of the same process.
"cold" starts a service of three slices first. "worker lost" is from the kill of a worker to the
event in the tenant's process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.own_service import ROOT, own_directories, own_service
from harness.results import measured, write_result

#: Seconds between two connections: the service warms up another proxy meanwhile.
PAUSE_S = 4.0

CLIENT = """
import json, time
from shared_pathways_service import isc_pathways
found = []
for again in range(ROUNDS):
    if again: time.sleep(PAUSE)
    began = time.monotonic()
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
        took = time.monotonic() - began
        timings = dict(connection.timings)
        began = time.monotonic()
    found.append({**timings, "connect": took, "close": time.monotonic() - began})
print(json.dumps(found))
"""
IMPORT = "import time; t = time.monotonic(); import jax; print(time.monotonic() - t)"


def run(source: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return json.loads(done.stdout)


def connections(rounds: int) -> list[dict[str, float]]:
    source = CLIENT.replace("ROUNDS", str(rounds)).replace("PAUSE", str(PAUSE_S))
    found: list[dict[str, float]] = run(source)
    return found


def running(rounds: int) -> dict[str, list[float]]:
    """Connections to a service that runs."""
    result: dict[str, list[float]] = {}
    with own_service("tpuv6e:2x2=2", spares=1):
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            first, second = connections(2)
            beside = first["connect"] - first["import_jax"]
            for name, value in (
                ("import jax, alone", run(IMPORT)),
                ("connect, first", first["connect"]),
                ("connect, beside jax", beside),
                ("connect, again", second["connect"]),
                *((f"  {step}", second[step]) for step in ("preflight", "create", "start")),
                *((f"  {step}", second[step]) for step in ("probe", "place", "attach")),
                ("close", second["close"]),
            ):
                result.setdefault(name, []).append(value)
        result["worker lost"] = [worker_loss() for _ in range(rounds)]
    return result


def worker_loss() -> float:
    """Seconds from the kill of a worker to the tenant's knowing."""
    from shared_pathways_service import isc_pathways

    lost, placed = threading.Event(), threading.Event()
    at: list[float] = []

    def hear(event: Any) -> None:
        if event.kind == "slice.unplaced":
            at.append(time.monotonic())
            lost.set()
        elif lost.is_set() and event.kind == "slice.placed":
            placed.set()

    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}, on_event=hear) as it:
        status = subprocess.run(
            [sys.executable, "-m", "shared_pathways_service.cli", "status", "--json"],
            check=True,
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        told = json.loads(status.stdout)
        [mine] = [item["id"] for item in told["slices"] if item["tenant"] == it.proxy_job_name]
        [worker] = [p["pid"] for p in told["processes"] if p["slice"] == mine]
        killed = time.monotonic()
        os.kill(worker, signal.SIGKILL)
        assert lost.wait(60)
        assert placed.wait(60)
    return at[0] - killed


def cold(rounds: int) -> dict[str, list[float]]:
    """Connections that start the service."""
    result: dict[str, list[float]] = {"connect, cold": [], "connect, cold, beside jax": []}
    for _ in range(rounds):
        with own_directories() as scratch:
            [found] = connections(1)
            state = json.loads((scratch / "r" / "state.json").read_text())
            os.kill(state["supervisor"]["pid"], signal.SIGTERM)
            while (scratch / "r" / "state.json").exists():
                time.sleep(0.05)
        result["connect, cold"].append(found["connect"])
        result["connect, cold, beside jax"].append(found["connect"] - found["import_jax"])
    return result


def show(result: Mapping[str, list[float]]) -> None:
    print(f"{'seconds':28}{'median':>9}{'least':>9}{'most':>9}")
    for name, values in result.items():
        cells = (statistics.median(values), min(values), max(values))
        print(f"{name:28}" + "".join(f"{value:9.3f}" for value in cells))


@measured()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = {**running(arguments.rounds), **cold(arguments.rounds)}
    show(result)
    write_result("connect", result, arguments.out, result)


if __name__ == "__main__":
    main()
