"""Arrays above 2 GiB through the proxy: made, put, computed with, split, fetched and summed up.

    python -m benchmarks.large_arrays [--gib 2.5] [--rounds 3] [--out result.json]

Starts an embedded service. The arrays have one byte per element, so that there are more elements
than 31 bits count. Every array that comes back is compared by its checksum. The seconds are medians
of all rounds. Takes about seven times the size in memory, most of it in JAX's client while it
fetches. Ends with 1 if anything came back wrong.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from pathlib import Path
from typing import Any

from harness.large_arrays import exercise
from harness.own_service import own_service
from harness.results import exit_code, measured, write_result

GIB = 1 << 30


def measure(gib: float, rounds: int) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Runs it through an embedded service.

    Returns:
      The result, and the seconds of each step in each round.
    """
    from shared_pathways_service import isc_pathways

    with (
        own_service("tpuv6e:2x2=2", spares=0),
        isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}),
    ):
        import jax

        found = [exercise(int(gib * GIB), jax.devices()) for _ in range(rounds)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = {step: [one["seconds"][step] for one in found] for step in found[0]["seconds"]}
    result = {
        **found[0],
        "seconds": {step: statistics.median(took) for step, took in seconds.items()},
        "wrong": sorted({name for one in found for name in one["wrong"]}),
        "client_peak_mib": peak // 1024,
    }
    return result, seconds


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result, seconds = measure(arguments.gib, arguments.rounds)
    print(json.dumps(result, indent=2))
    write_result("large_arrays", result, arguments.out, seconds)
    return exit_code(f"{name}: came back wrong" for name in result["wrong"])


if __name__ == "__main__":
    sys.exit(main())
