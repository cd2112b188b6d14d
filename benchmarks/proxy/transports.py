"""What grpcio's core is worth: the proxy with each of its two transports, in turn.

    python -m benchmarks.proxy.transports [--rounds 7] [--out FILE]

A round measures a proxy of its own with each transport, one right after the other. What is printed
are medians of all rounds, and the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

from benchmarks.proxy.running import client, with_proxy
from harness.results import measured, write_result

_TRANSPORTS = ("core", "public")
#: The names of figures in `benchmarks.proxy.clients`, and their meaning.
_FIGURES = {
    "sync_us": "jit(x+1)(x).block_until_ready(), us",
    "async_1": "asynchronous executes/s, 1 device",
    "async_8": "asynchronous executes/s, 8 devices in 2 slices",
}


@measured()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proxy.transports")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rounds = []
    for _ in range(arguments.rounds):
        rounds.append(
            {
                transport: with_proxy(
                    lambda proxy: client("dispatch", proxy.address), f"--transport={transport}"
                )
                for transport in _TRANSPORTS
            }
        )
        print(rounds[-1], flush=True)
    result: dict[str, object] = {"rounds": rounds, "load_average": os.getloadavg()}
    for name, figure in _FIGURES.items():
        medians = {t: statistics.median(one[t][name] for one in rounds) for t in _TRANSPORTS}
        ratio = statistics.median(one["core"][name] / one["public"][name] for one in rounds)
        print(f"{figure:48}{medians['core']:10,.0f}{medians['public']:10,.0f}{ratio:8.2f}")
        result[name] = {"figure": figure, **medians, "core_to_public": ratio}
    ratios = {n: [one["core"][n] / one["public"][n] for one in rounds] for n in _FIGURES}
    write_result("proxy_transports", result, arguments.out, ratios)


if __name__ == "__main__":
    main()
