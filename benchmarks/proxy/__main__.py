"""The proxy's speed, each figure with its limit from the same run.

    python -m benchmarks.proxy [--rounds 5] [--only WORD] [--out FILE]

A round measures everything once, each time with processes of its own; what is printed are the
medians of all rounds, of the ratios too. The *null server* is the proxy's transport that answers
without doing the work. Machines are shared and noisy: only the ratios mean much.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.proxy.running import (
    Figures,
    Proxy,
    at_once,
    client,
    less,
    running_proxy,
    with_proxy,
)
from harness.results import exit_code, measured, write_result
from shared_pathways_service.runtime import allocator

SHARED_MEMORY = "/dev/shm"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      figure: The measured quantity and its unit.
      limit: The quantity with which it is compared.
      wanted: The ratio; of what shall be small at the most, else at the least.
      small: Whether less is better.
      measure: Returns the figure and its limit.
    """

    figure: str
    limit: str
    wanted: float
    small: bool
    measure: Callable[[Round], tuple[float, float]]


class Round:
    """Measures each thing once, when it is first asked for."""

    def __init__(self) -> None:
        self._known: dict[str, Figures] = {}

    def of(self, name: str, measure: Callable[[], Figures]) -> Figures:
        """Returns the measurements of a name."""
        if name not in self._known:
            self._known[name] = measure()
        return self._known[name]

    def proxy(self) -> Figures:
        return self.of("proxy", lambda: with_proxy(lambda p: client("dispatch", p.address)))

    def one_slice(self) -> Figures:
        flag = "--virtual_slices=tpuv6e:2x4"
        return self.of("one", lambda: with_proxy(lambda p: client("dispatch", p.address), flag))

    def null(self, transport: str = "auto") -> Figures:
        def measure() -> Figures:
            with less("null", transport) as socket:
                return client("dispatch", f"unix:{socket}")

        return self.of(f"null {transport}", measure)

    def null_fetch(self) -> Figures:
        def measure() -> Figures:
            with less("null") as socket:
                return client("fetch", f"unix:{socket}")

        return self.of("null fetch", measure)

    def local(self) -> Figures:
        return self.of("local", lambda: client("local"))

    def fetch(self) -> Figures:
        return self.of("fetch", lambda: with_proxy(lambda p: client("fetch", p.address)))

    def transfers(self) -> Figures:
        return self.of("transfers", lambda: with_proxy(lambda p: client("transfers", p.address)))

    def tuned(self) -> Figures:
        def measure(p: Proxy) -> Figures:
            return client("transfers", p.address, env=allocator.ENVIRONMENT)

        return self.of("tuned", lambda: with_proxy(measure))

    def streams(self) -> Figures:
        def measure() -> Figures:
            with less("stream") as socket:
                return client("streams", socket)

        return self.of("streams", measure)

    def shared(self) -> Figures:
        def measure() -> Figures:
            with tempfile.TemporaryDirectory(prefix="sps-", dir=SHARED_MEMORY) as directory:
                limit = client("files", directory)
                flag = f"--large_transfer_dir={directory}"
                found = with_proxy(lambda p: client("transfers", p.address, directory), flag)
            return {"up": found["up"], "limit": limit["up"]}

        return self.of("shared", measure)

    def tenants(self) -> Figures:
        """The slower of two at once, compared with half of one alone."""

        def measure() -> Figures:
            with running_proxy() as first, running_proxy() as second:
                (alone,) = at_once("tenant", [first.address])
                both = at_once("tenant", [first.address, second.address])
            return {"slower": min(f["async_1"] for f in both), "half": alone["async_1"] / 2}

        return self.of("tenants", measure)

    def arrays(self) -> Figures:
        return self.of(
            "arrays", lambda: with_proxy(lambda p: client("arrays", p.address, str(p.pid)))
        )


ROWS: Mapping[str, Row] = {
    "sync": Row(
        "jit(x+1)(x).block_until_ready(), us",
        "null server",
        1.5,
        True,
        lambda r: (r.proxy()["sync_us"], r.null()["sync_us"]),
    ),
    "async_1": Row(
        "asynchronous executes/s, 1 device",
        "null server",
        0.5,
        False,
        lambda r: (r.proxy()["async_1"], r.null()["async_1"]),
    ),
    "async_1_public": Row(
        "the same",
        "null, public gRPC API",
        0.5,
        False,
        lambda r: (r.proxy()["async_1"], r.null("public")["async_1"]),
    ),
    "async_8": Row(
        "asynchronous executes/s, 8 devices, 1 slice",
        "jit on the CPU",
        0.5,
        False,
        lambda r: (r.one_slice()["async_8"], r.local()["async_8"]),
    ),
    "async_8_of_2": Row(
        "the same, 8 devices in 2 slices",
        "jit on the CPU",
        0.5,
        False,
        lambda r: (r.proxy()["async_8"], r.local()["async_8"]),
    ),
    "fetch": Row(
        "np.asarray(f(x)), small, us",
        "two null round trips",
        1.5,
        True,
        lambda r: (r.fetch()["fetch_us"], 2 * r.null()["sync_us"]),
    ),
    "fetch_null": Row(
        "the same",
        "null server's own",
        1.5,
        True,
        lambda r: (r.fetch()["fetch_us"], r.null_fetch()["fetch_us"]),
    ),
    "up": Row(
        "host to device, stream, MB/s",
        "raw gRPC up",
        0.6,
        False,
        lambda r: (r.transfers()["up"], r.streams()["up"]),
    ),
    "shared": Row(
        "host to device, shared directory, MB/s",
        "write there",
        0.75,
        False,
        lambda r: (r.shared()["up"], r.shared()["limit"]),
    ),
    "down": Row(
        "device to host, stream, MB/s",
        "raw gRPC down",
        0.4,
        False,
        lambda r: (r.transfers()["down"], r.streams()["down"]),
    ),
    "down_tuned": Row(
        "the same with the allocator's settings",
        "raw gRPC down",
        0.5,
        False,
        lambda r: (r.tuned()["down"], r.streams()["down"]),
    ),
    "tenants": Row(
        "executes/s of the slower of two tenants",
        "half of one alone",
        0.8,
        False,
        lambda r: (r.tenants()["slower"], r.tenants()["half"]),
    ),
    "arrays": Row(
        "memory a live small array, bytes",
        "4 KB",
        1.0,
        True,
        lambda r: (r.arrays()["bytes"], 4096.0),
    ),
}


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proxy",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=ROWS, nargs="*", help="rows; all of them if omitted")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rows = {name: ROWS[name] for name in arguments.only or ROWS}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for number in range(arguments.rounds):
        this = Round()
        for name, row in rows.items():
            found[name].append(row.measure(this))
        print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    missed = []
    result = {}
    print(f"{'':48}{'median':>10}{'limit':>10}  {'':22}{'ratio':>7}{'wanted':>10}")
    for name, row in rows.items():
        value, limit = (statistics.median(column) for column in zip(*found[name], strict=True))
        ratio = statistics.median(value / limit for value, limit in found[name])
        well = ratio <= row.wanted if row.small else ratio >= row.wanted
        if not well:
            missed.append(name)
        sign = "<=" if row.small else ">="
        wanted = f"{sign} {row.wanted:g}{'' if well else ' !'}"
        print(
            f"{row.figure:48}{value:10,.0f}{limit:10,.0f}  {row.limit:22}{ratio:7.2f}{wanted:>10}"
        )
        result[name] = {
            "figure": row.figure,
            "median": value,
            "limit": {"of": row.limit, "median": limit},
            "ratio": ratio,
            "wanted": f"{sign} {row.wanted:g}",
            "rounds": found[name],
        }
    ratios = {name: [value / limit for value, limit in pairs] for name, pairs in found.items()}
    write_result("proxy", result, arguments.out, ratios)
    return exit_code(missed)


if __name__ == "__main__":
    sys.exit(main())
