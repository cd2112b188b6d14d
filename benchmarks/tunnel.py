"""Compares our link with our plain port-forwards, kubectl, kr8s, and the `kubernetes` client.

    python -m benchmarks.tunnel [--megabytes 200] [--rounds 3] [--only link --only kubectl …]
        [--round-trips 50 150] [--rates 20 100 1000] [--seconds 4] [--lines-only] [--out F]

"link" is connect()'s resumable link, "plain" its plain port-forward for each connection.
One pod on a testbed (a real API server and kubelet endpoint), the same sizes for all, in turns, so
that other work of the machine affects all alike: the ratios are the result. CPU seconds are those
of the forwarding process. The bound is the rate of a forwarder without any cost, if all cores did
nothing but the rest of the path (API server, kubelet, pod, client). The `kubernetes` client's
stream is not a forwarder, so threads copy its bytes. Memory is that of the relay's process while a
reader stalls and a pod sends as fast as it can.

A line (`--round-trips`, in milliseconds, and `--rates`, in Mbit/s) is a process that delays and
limits all bytes between the forwarder and the API server, or between the client and the pod
("raw"). It models neither loss nor the slow start of TCP. All forwarders take turns on it; ratios
are of transfers of one round. Aim: on each line with a delay, the link moves at least as many bytes
per second as kubectl (the median of the ratios). Ends with 1 if it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from benchmarks.tunnel_forwarders import free_port, process, running
from benchmarks.tunnel_pod import (
    LINK_PORT,
    PORT,
    Work,
    command,
    connect,
    down,
    round_trips,
    round_trips_during,
    throughput,
    up,
)
from harness.own_service import ROOT
from harness.results import exit_code, measured, write_result

FORWARDERS = ("link", "plain", "kubectl", "kr8s", "kubernetes")
#: Bytes of the upload beside which round trips are measured.
BESIDE_BYTES = 1_000_000_000
#: The least ratio of the link's rate to kubectl's, each way of each line with a delay.
KUBECTL_AIM = 1.0
#: Megabytes per second of each transfer, by way (``down``, ``up``) and forwarder.
Rates = dict[str, dict[str, list[float]]]


@dataclasses.dataclass(frozen=True)
class Line:
    """The way between a forwarder and the API server."""

    round_trip_s: float
    bytes_per_s: float

    @property
    def label(self) -> str:
        """What it is called in results."""
        return f"{self.round_trip_s * 1e3:g} ms, {self.bytes_per_s * 8 / 1e6:g} Mbit/s"


class Rig:
    """A testbed with the pod that is loaded."""

    def __init__(self, testbed: Any, namespace: Any, scratch: Path) -> None:
        self.testbed, self.namespace = testbed, namespace
        self.user = namespace.user("operator")
        self.scratch = scratch
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import os; "
        code += f"from benchmarks import tunnel_pod as t; t.serve(os.environ['IP'], {PORT})"
        environment = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        from shared_pathways_service.testing.testbed.node_agent.images import COMMAND_IMAGE

        main: dict[str, Any] = {
            "name": "main",
            "image": COMMAND_IMAGE,
            "command": [sys.executable, "-c", code],
        }
        ports = [{"containerPort": port} for port in (PORT, LINK_PORT)]
        main |= {"env": environment, "ports": ports}
        namespace.create("pods", {"metadata": {"name": "load"}, "spec": {"containers": [main]}})
        seen = namespace.wait_for_pod("load", lambda pod: pod["status"].get("phase") == "Running")
        self.pod_ip: str = seen["status"]["podIP"]
        while "listening" not in namespace.log("load"):
            time.sleep(0.1)

    @contextlib.contextmanager
    def forwarder(self, name: str, server: str) -> Iterator[tuple[int, psutil.Process]]:
        """Runs one of `FORWARDERS` towards an API server's URL; gives port and process."""
        port = free_port()
        original = self.testbed.kubeconfig_of(self.user, namespace=self.namespace.name)
        kubeconfig = self.scratch / f"{port}.kubeconfig"
        kubeconfig.write_text(original.read_text().replace(self.testbed.server, server))
        namespace = self.namespace.name
        to = LINK_PORT if name == "link" else PORT
        path = self.namespace.path("pods", f"load/portforward?ports={to}")
        if name == "kubectl":
            line = ["kubectl", "--kubeconfig", str(kubeconfig), "-n", namespace]
            started = running([*line, "port-forward", "pod/load", f"{port}:{PORT}"], port)
        elif name in ("link", "plain"):
            started = process(f"forward_{name}", port, server + path, self.user.token)
        else:
            started = process(f"forward_{name}", port, str(kubeconfig), namespace)
        with started as found:
            yield port, found


CASES: tuple[tuple[str, Work, int], ...] = (
    ("down_1", down, 1),
    ("down_8", down, 8),
    ("up_1", up, 1),
    ("up_8", up, 8),
)


def measure(
    rig: Rig, names: list[str], total: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Measures every forwarder in turns; returns the figures of all rounds by forwarder."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(rig.forwarder(name, rig.testbed.server)) for name in names
        }
        for _ in range(rounds):
            for label, work, connections in CASES:
                for name, (port, found) in started.items():
                    rate, cpu, rest = throughput(work, port, total, connections, found)
                    samples[name].setdefault(f"{label}_mb_per_s", []).append(rate)
                    samples[name].setdefault(f"{label}_cpu_s_per_gb", []).append(cpu)
                    bound = (psutil.cpu_count() or 1) / rest * 1e3
                    samples[name].setdefault(f"{label}_bound_mb_per_s", []).append(bound)
            for name, (port, _) in started.items():
                took = round_trips(port)
                samples[name].setdefault("rtt_p50_us", []).append(took[len(took) // 2])
                samples[name].setdefault("rtt_p99_us", []).append(took[len(took) * 99 // 100])
            for name, (port, _) in started.items():
                took = round_trips_during(up, port, BESIDE_BYTES)
                samples[name].setdefault("rtt_p50_beside_upload_us", []).append(
                    took[len(took) // 2]
                )
    return samples


def medians(samples: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, dict[str, float]]:
    """Returns the median of each figure, by forwarder."""
    return {
        name: {label: round(statistics.median(values), 2) for label, values in found.items()}
        for name, found in samples.items()
    }


def measure_line(rig: Rig, names: list[str], line: Line, seconds: float, rounds: int) -> Rates:
    """Measures transfers of one connection over a line, of which all take turns.

    Returns:
      The rates of each way, by forwarder. The first transfer is one more than the rounds: a link
      learns the line's rate from it.
    """
    samples: Rates = {"down": {}, "up": {}}
    api = urlsplit(rig.testbed.server)
    total = int(line.bytes_per_s * seconds)
    with contextlib.ExitStack() as stack:
        behind, raw = free_port(), free_port()
        for port, host, to in ((behind, api.hostname, api.port), (raw, rig.pod_ip, PORT)):
            arguments = (host, to, line.round_trip_s, line.bytes_per_s)
            stack.enter_context(process("line", port, *arguments))
        ports = {"raw": raw}
        for name in names:
            server = f"https://127.0.0.1:{behind}"
            ports[name] = stack.enter_context(rig.forwarder(name, server))[0]
        for _ in range(1 + rounds):
            for way, work in (("down", down), ("up", up)):
                for name, port in ports.items():
                    rate = throughput(work, port, total, 1, None)[0]
                    samples[way].setdefault(name, []).append(rate)
    return samples


def ratios_of(rates: Mapping[str, Sequence[float]], ours: str) -> dict[str, list[float]]:
    """Returns the ratios of our rates to those of each other forwarder, round by round."""
    return {
        name: [mine / theirs for mine, theirs in zip(rates[ours][1:], others[1:], strict=True)]
        for name, others in rates.items()
        if name != ours
    }


def of_line(rates: Mapping[str, Sequence[float]], ours: str) -> dict[str, Any]:
    """Returns medians, and those of the ratios of ours to each of the others."""
    figures: dict[str, Any] = {}
    ratios = ratios_of(rates, ours)
    for name, (first, *others) in rates.items():
        figures[f"{name}_mb_per_s"] = round(statistics.median(others), 2)
        figures[f"{name}_first_mb_per_s"] = round(first, 2)
        if name in ratios:
            spread = (statistics.median(ratios[name]), min(ratios[name]), max(ratios[name]))
            figures[f"of_{name}_median_min_max"] = [round(ratio, 3) for ratio in spread]
    return figures


def measure_lines(rig: Rig, names: list[str], arguments: argparse.Namespace) -> dict[Line, Rates]:
    """Measures each line that was asked for; prints its figures."""
    found = {}
    for round_trip_ms, mbit_per_s in itertools.product(arguments.round_trips, arguments.rates):
        line = Line(round_trip_ms / 1000, mbit_per_s * 1e6 / 8)
        found[line] = measure_line(rig, names, line, arguments.seconds, arguments.rounds)
        figures = {way: of_line(rates, names[0]) for way, rates in found[line].items()}
        print(line.label, json.dumps(figures), flush=True)
    return found


def missed(lines: Mapping[Line, Rates]) -> Iterator[str]:
    """Yields the ways of lines with a delay on which the link was slower than kubectl."""
    for line, ways in lines.items():
        for way, rates in ways.items():
            if not line.round_trip_s or not {"link", "kubectl"} <= rates.keys():
                continue
            ratio = statistics.median(ratios_of(rates, "link")["kubectl"])
            if ratio < KUBECTL_AIM:
                yield f"{way}, {line.label}: {ratio:.3f} of kubectl's bytes (aim: {KUBECTL_AIM:g})"


def measure_memory(rig: Rig) -> dict[str, float]:
    """Returns MB of the relay's process, idle and after a stalled reader."""
    with rig.forwarder("link", rig.testbed.server) as (port, found), connect(port) as peer:
        idle = found.memory_info().rss / 1e6
        peer.sendall(command("d", 4_000_000_000))
        largest, until = 0.0, time.monotonic() + 5
        while time.monotonic() < until:
            largest = max(largest, found.memory_info().rss / 1e6)
            time.sleep(0.05)
    return {"idle_mb": round(idle, 1), "stalled_mb": round(largest, 1)}


def show(result: Mapping[str, Any]) -> None:
    """Prints the table, and our figures relative to the others'."""
    table: dict[str, dict[str, float]] = result["forwarders"]
    names = list(table)
    print(f"{'':24}" + "".join(f"{name:>12}" for name in names) + f"   {names[0]} / the other's")
    for label in table[names[0]]:
        values = [table[name][label] for name in names]
        ratios = [f"{values[0] / v:.2f}" for v in values[1:] if v]
        print(f"{label:24}" + "".join(f"{v:12.2f}" for v in values) + "   " + " ".join(ratios))
    for name, figures in table.items():
        shares = [
            f"{label} {figures[f'{label}_mb_per_s'] / figures[f'{label}_bound_mb_per_s']:.2f}"
            for label, _, _ in CASES
        ]
        beside = figures["rtt_p50_beside_upload_us"] / figures["rtt_p50_us"]
        print(
            f"{name}: of the bound: {', '.join(shares)}; round trip beside an upload: {beside:.1f}x"
        )
    print(json.dumps({k: v for k, v in result.items() if k != "forwarders"}, indent=2))


@measured()
def main() -> int:
    """Parses the arguments, runs, prints; returns the exit code."""
    from shared_pathways_service.testing.testbed import Testbed, new_namespace

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", choices=FORWARDERS)
    parser.add_argument("--round-trips", type=float, nargs="*", default=[50.0, 150.0], help="in ms")
    parser.add_argument("--rates", type=float, nargs="*", default=[20.0, 100.0, 1000.0])
    parser.add_argument("--seconds", type=float, default=4.0, help="of a transfer at a line's rate")
    parser.add_argument("--lines-only", action="store_true", help="measure nothing but the lines")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = arguments.only or list(FORWARDERS)
    total = arguments.megabytes * 1_000_000
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sps-bench-")))
        testbed = stack.enter_context(Testbed.start(report=print))
        rig = Rig(testbed, stack.enter_context(new_namespace(testbed)), scratch)
        lines = measure_lines(rig, names, arguments)
        repeats = {
            f"{way} of {names[0]} to {name}, {line.label}": ratios
            for line, ways in lines.items()
            for way, rates in ways.items()
            for name, ratios in ratios_of(rates, names[0]).items()
        }
        result: dict[str, Any] = {
            "lines": {
                line.label: {way: of_line(rates, names[0]) for way, rates in ways.items()}
                for line, ways in lines.items()
            }
        }
        if not arguments.lines_only:
            found = measure(rig, names, total, arguments.rounds)
            repeats |= {
                f"{label} of {name}": values
                for name, figures in found.items()
                for label, values in figures.items()
            }
            result["forwarders"] = medians(found)
            result["memory"] = measure_memory(rig)
            show(result)
    result = {"megabytes": arguments.megabytes, "seconds": arguments.seconds, **result}
    write_result("tunnel", result, arguments.out, repeats)
    return exit_code(missed(lines))


if __name__ == "__main__":
    sys.exit(main())
