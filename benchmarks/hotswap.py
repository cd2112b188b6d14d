"""Hotswap on the testbed: seconds until a JobSet of high priority is back, and the other one.

    python -m benchmarks.hotswap [--runs 5] [--out result.json]

Two JobSets over 4x4 node pools (`yamls/hotswap`), with processes that depend on each other like
JAX's. Each run has its own testbed namespace and three disruptions: a pool of the higher one is
drained while there is a spare pool; another one without a spare, so that the lower one gives way
until the first is uncordoned; and a node vanishes without notice. Seconds are from the drain, or
from the node's NotReady, until all pods are ready; for the lower one from the uncordon. Aims: 10 s,
5 s and 60 s.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.own_service import own_directories
from harness.results import exit_code, measured, write_result
from harness.testbed.crew import COMMAND, IMAGE
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW, hotswap_jobset
from shared_pathways_service.manifests.priority_classes import priority_classes
from shared_pathways_service.operations.hotswap import Hotswap, Report, create_missing, following
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace

POOLS = {"tpuv6e:4x4": 4}
LIMIT_S = 240.0
AIMS = {"spare": 10.0, "drain": 10.0, "low": 5.0, "vanish": 60.0}
#: The user's own: the control plane is built there already, or is worth keeping.
CACHE_DIR = Settings.load().cache_dir


async def _run(api: KubeApi, namespace: Namespace) -> dict[str, Report]:
    program = {"namespace": namespace.name, "image": IMAGE, "command": COMMAND}
    crews = [hotswap_jobset(dataclasses.replace(i, **program)) for i in (LOW, HIGH)]  # type: ignore[arg-type]
    await create_missing(api, namespace.name, [*priority_classes(), *crews])

    async def disrupted(pool: int | None, *, restore: bool) -> Report:
        async with following(api, namespace.name, HIGH.name, LOW.name) as running:
            await running.wait_until_all_ready(timeout_s=LIMIT_S)
            if pool is None:
                return await _vanish(running, namespace)
            name = running.seen.pools_of(HIGH.name)[pool]
            nodes = await running.drain(name, timeout_s=LIMIT_S)
            await running.wait_until_back(timeout_s=LIMIT_S)
            if restore:
                await running.restore(nodes, timeout_s=LIMIT_S)
            return running.report(name)

    return {
        "spare": await disrupted(0, restore=False),
        "drain": await disrupted(0, restore=True),
        "vanish": await disrupted(None, restore=False),
    }


async def _vanish(running: Hotswap, namespace: Namespace) -> Report:
    lost = asyncio.create_task(running.wait_until_lost(timeout_s=LIMIT_S))
    await asyncio.sleep(0)  # it counts from here on
    node = f"{running.seen.pools_of(HIGH.name)[0]}-1"
    await asyncio.to_thread(namespace.testbed.vanish, node)
    await lost
    await running.wait_until_back(timeout_s=LIMIT_S)
    return running.report()


def measure(runs: int) -> dict[str, Any]:
    """Returns what came of each run."""
    done = []
    with own_directories(), Testbed.start(cache_dir=CACHE_DIR, report=print) as testbed:
        os.environ["KUBECONFIG"] = str(testbed.kubeconfig_of(testbed.admin))
        for _ in range(runs):
            before = os.getloadavg()[0]
            with new_namespace(testbed, pools=POOLS) as namespace:
                reports = asyncio.run(_in(namespace))
            one = {name: report.to_json() for name, report in reports.items()}
            done.append({**one, "load_before": round(before, 2)})
            print(_line(one), flush=True)
    return {"runs": done, "seconds": {name: _seconds(done, name) for name in AIMS}, "aims": AIMS}


async def _in(namespace: Namespace) -> dict[str, Report]:
    async with KubeApi(await resolve(ClusterChoice(context="testbed"))) as api:
        return await _run(api, namespace)


def _seconds(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    if name == "low":
        return [run["drain"]["low_back_s"] for run in runs]
    return [run[name]["high_back_s"] for run in runs]


def _line(run: Mapping[str, Any]) -> str:
    cells = [f"{name} {_seconds([run], name)[0]:.1f} s" for name in AIMS]
    shared = [pool for kind in ("spare", "drain", "vanish") for pool in run[kind]["shared"]]
    return ", ".join(cells) + f"; pools with pods of both: {len(shared)}"


def show(result: Mapping[str, Any]) -> None:
    for name, seconds in result["seconds"].items():
        cells = f"median {statistics.median(seconds):.1f}, worst {max(seconds):.1f}"
        print(f"{name:<8} {cells} s (aim: {AIMS[name]:.0f})")


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    result = measure(options.runs)
    show(result)
    write_result("hotswap", result, options.out, result["seconds"])
    return exit_code(n for n, s in result["seconds"].items() if statistics.median(s) > AIMS[n])


if __name__ == "__main__":
    sys.exit(main())
