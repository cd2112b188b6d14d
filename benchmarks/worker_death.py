"""From the kill of a worker to its tenant's knowing, and to its being placed on the spare.

A real resource manager, two workers on Unix sockets, and a tenant's stream. Each round kills the
worker of the slice that the tenant is on and starts it again.

    python -m benchmarks.worker_death [--rounds 20] [--out result.json]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness.processes import Service
from harness.results import exit_code, measured, write_result
from shared_pathways_service.protocol import resource_manager_pb2 as pb

#: Seconds, at most, from the kill to the tenant's knowing.
AIM_S = 0.2


def measure(rounds: int) -> dict[str, list[float]]:
    """Returns the seconds of each round, by the awaited event."""
    seconds: dict[str, list[float]] = {"told": [], "placed again": []}
    names = ("slice-0", "slice-1")
    with (
        tempfile.TemporaryDirectory(prefix="sps-") as root,
        Service(Path(root), "--num_spares=1") as service,
    ):
        workers = dict(zip(names, service.start_ready_workers(*names), strict=True))
        tenant = service.tenant("ada")
        on = tenant.expect("placement").slice_id
        for _ in range(rounds):
            worker = workers[on]
            begun = time.perf_counter()
            worker.kill()
            lost = tenant.expect("placement")
            seconds["told"].append(time.perf_counter() - begun)
            assert (lost.state, lost.slice_id) == (pb.Placement.UNPLACED, on)
            placed = tenant.expect("placement")
            seconds["placed again"].append(time.perf_counter() - begun)
            workers[on] = service.start_worker(on)
            service.wait_for_states(dict.fromkeys(names, "ready"))
            on = placed.slice_id
    return seconds


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    seconds = measure(options.rounds)
    print(f"{'kill -9 of a worker to':<24}{'median':>10}{'p90':>10}{'worst':>10}   ms")
    for name, values in seconds.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        row = (statistics.median(values), p90, max(values))
        print(f"{name:<24}" + "".join(f"{1000 * value:>10.1f}" for value in row))
    print(f"told: worst {1000 * max(seconds['told']):.1f} ms (aim: at most {1000 * AIM_S:.0f} ms)")
    write_result("worker_death", {"aim_s": AIM_S, "seconds": seconds}, options.out, seconds)
    return exit_code(["told"] if max(seconds["told"]) > AIM_S else [])


if __name__ == "__main__":
    sys.exit(main())
