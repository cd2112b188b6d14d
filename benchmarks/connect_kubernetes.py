"""How long connect() to a service on the testbed takes, step by step.

    python -m benchmarks.connect_kubernetes [--rounds 5] [--out result.json]

Each round is a Python process of its own that has imported JAX, on a testbed that is warm. "ours"
is the whole without the scheduler's and the pod's part: from the Job's creation until the proxy's
own log says that it serves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from harness.own_service import ROOT, own_directories
from harness.results import exit_code, measured, write_result
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace
from shared_pathways_service.testing.testbed.deployed_service import deploy_service

KIND = "tpuv6e:2x2"
STEPS = ("preflight", "create", "start", "tunnel", "probe", "place", "attach")
LIMIT_S = 1.0

CLIENT = """
import datetime, json, os, re, time
from shared_pathways_service import isc_pathways
import jax
created = []
def hear(event):
    if event.kind == "connect.create.done":
        created.append(datetime.datetime.fromisoformat(event.time))
began = time.monotonic()
connection = isc_pathways.connect(context="testbed", namespace=os.environ["NAMESPACE"],
                                  expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=hear)
connection.start()
took = time.monotonic() - began
[line] = [line for line in connection.logs(200) if "Proxy serving on" in line]
clock = re.search(r"[IWEF](\\d{4}) ([\\d:.]+)", line)
year = created[0].year
serving = datetime.datetime.strptime(f"{year}{clock[1]} {clock[2]}", "%Y%m%d %H:%M:%S.%f")
pod = (serving.astimezone() - created[0]).total_seconds()
timings = dict(connection.timings)
began = time.monotonic()
connection.close()
print(json.dumps({**timings, "connect": took, "pod": pod, "close": time.monotonic() - began}))
"""


def connect_once(namespace: Namespace) -> dict[str, float]:
    environment = {
        **os.environ,
        "KUBECONFIG": str(namespace.kubeconfig_of("tenant")),
        "NAMESPACE": namespace.name,
    }
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=environment,
    )
    told: dict[str, float] = json.loads(done.stdout)
    return told


def measure(rounds: int) -> dict[str, list[float]]:
    result: dict[str, list[float]] = {}
    cache = Settings.load().cache_dir
    with (
        own_directories(),
        Testbed.start(cache_dir=cache) as testbed,
        new_namespace(testbed, pools={KIND: 2}) as namespace,
    ):
        deploy_service(namespace, {KIND: 2})
        for _ in range(rounds):
            told = connect_once(namespace)
            for name, value in (
                ("connect", told["connect"]),
                *((f"  {step}", told[step]) for step in STEPS),
                ("scheduler and pod", told["pod"]),
                ("ours", told["connect"] - told["pod"]),
                ("close", told["close"]),
            ):
                result.setdefault(name, []).append(value)
    return result


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.rounds)
    print(f"{'step':20} {'median s':>10} {'worst s':>10}")
    for name, values in result.items():
        print(f"{name:20} {statistics.median(values):10.3f} {max(values):10.3f}")
    ours = statistics.median(result["ours"])
    print(f"ours is {ours / LIMIT_S:.2f} of the {LIMIT_S:g} s that it may take")
    summary = {"seconds": result, "ours_of_limit": ours / LIMIT_S}
    write_result("connect_kubernetes", summary, arguments.out, result)
    return exit_code(["ours"] if ours > LIMIT_S else [])


if __name__ == "__main__":
    sys.exit(main())
