"""Saturates every core and moves large arrays for a while; no slice may be declared lost.

    python -m stress.saturation [--seconds 600] [--megabytes 800] [--out result.json]

Starts an embedded service and the load of two clients: one busy process per core, and one
connection that repeatedly sends and fetches arrays of the given size, each compared afterwards.
Ends with 1 if a slice was declared lost, or an array came back wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.own_service import own_service
from harness.results import exit_code, measured, write_result
from shared_pathways_service.events import Event


def saturate(seconds: float, megabytes: int) -> tuple[dict[str, Any], list[float]]:
    """Runs the load; returns what happened, and the seconds of each round trip."""
    import numpy as np

    from shared_pathways_service import isc_pathways

    lost: list[str] = []

    def count(event: Event) -> None:
        if event.kind == "slice.unplaced":
            lost.append(event.reason or "")

    wrong = 0
    took: list[float] = []
    with own_service("tpuv6e:2x2=2", spares=1):
        try:
            with (
                isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=count),
                # (Only during the transfers: to close has a deadline.)
                every_core_busy(),
            ):
                import jax

                values = np.arange(megabytes * (1 << 20) // 4, dtype=np.float32)
                started = time.monotonic()
                while (began := time.monotonic()) - started < seconds:
                    device = jax.devices()[len(took) % jax.device_count()]
                    fetched = np.asarray(jax.device_put(values, device))
                    took.append(time.monotonic() - began)
                    wrong += not np.array_equal(fetched, values)
                elapsed = time.monotonic() - started
        finally:
            if lost:
                show_logs()
    result = {
        "seconds": round(elapsed, 1),
        "megabytes": megabytes,
        "round_trips": len(took),
        "wrong": wrong,
        "slices_lost": len(lost),
        "why_lost": lost,
        "mb_per_s_both_ways": round(2 * len(took) * megabytes / elapsed, 1),
    }
    return result, took


@contextlib.contextmanager
def every_core_busy() -> Iterator[None]:
    """Runs one busy process per core."""
    busy = "import os\nwhile os.getppid() == {}: pass".format(os.getpid())  # noqa: UP032 - braces
    burners = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def show_logs() -> None:
    """Shows the stalled processes, before the logs are removed."""
    for component in ("rm", "worker"):
        command = [sys.executable, "-m", "shared_pathways_service.cli", "logs"]
        subprocess.run([*command, "--component", component], stdout=sys.stderr, check=False)


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--megabytes", type=int, default=800)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    result, took = saturate(arguments.seconds, arguments.megabytes)
    print(json.dumps(result, indent=2))
    write_result("saturation", result, arguments.out, {"round_trip_s": took})
    missed = [f"{name}: {result[name]}" for name in ("wrong", "slices_lost") if result[name]]
    return exit_code(missed if took else [*missed, "no round trip ended"])


if __name__ == "__main__":
    sys.exit(main())
