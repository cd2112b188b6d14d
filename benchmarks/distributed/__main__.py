"""The distributed engine's speed, each figure with its limit from the same run.

    python -m benchmarks.distributed [--rounds 5] [--short] [--only WORD…] [--out FILE]

All proxies, their executors and their clients run during the whole benchmark, and take turns: in
each round each figure and its limit are measured one after the other, in alternating order. What is
printed are the medians of all rounds, of the ratios too. Machines are shared and noisy: only the
ratios mean much. All processes share one machine, so executors have no cores of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.distributed.clients import raw_fetch, raw_upload
from benchmarks.distributed.measuring import Client, running_client
from benchmarks.distributed.scale import measure_scale, show_scale
from benchmarks.proxy.running import less, running_proxy
from harness.proxy.executors import running_executors
from harness.results import exit_code, measured, write_result
from shared_pathways_service.api.topology import InstanceType

#: Slices of one, two and four hosts, each with four devices.
ONE, TWO, FOUR = "tpuv6e:2x2", "tpuv6e:2x4", "tpuv6e:4x4"
#: The growth with the number of executors, a table of its own.
_SCALE = "scale"


class Setting:
    """Processes that are started when they are first needed, and end with `stack`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack

    @functools.cached_property
    def local(self) -> Client:
        return self._client(ONE, ONE, is_distributed=False)

    @functools.cached_property
    def one(self) -> Client:
        return self._client(ONE, ONE)

    @functools.cached_property
    def two(self) -> Client:
        return self._client(TWO)

    @functools.cached_property
    def four(self) -> Client:
        return self._client(FOUR)

    @functools.cached_property
    def relay(self) -> str:
        """The socket of a process that stands for a proxy of four executors."""
        sinks = [self._stack.enter_context(less("stream")) for _ in range(4)]
        return self._stack.enter_context(less("relay", *sinks))

    @functools.cached_property
    def stream(self) -> str:
        """The socket of a process that stands for an executor, for another one."""
        return self._stack.enter_context(less("stream"))

    def _client(self, *slices: str, is_distributed: bool = True) -> Client:
        flags = [f"--virtual_slices={','.join(slices)}"]
        if is_distributed:
            hosts = [
                (f"--instance_type={name}", f"--host_index={host}")
                for name in slices
                for host in range(InstanceType.parse(name).hosts)
            ]
            flags += self._stack.enter_context(running_executors(*hosts)).proxys_flags
        proxy = self._stack.enter_context(running_proxy(*flags))
        return self._stack.enter_context(running_client(proxy.address))


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      figure: The measured quantity and its unit.
      limit: The quantity with which it is compared.
      wanted: The ratio, at the least.
      count: How often a round repeats what is measured; and in the short form.
      measure: Returns the figure.
      measure_limit: Returns its limit.
    """

    figure: str
    limit: str
    wanted: float
    count: tuple[int, int]
    measure: Callable[[Setting, int], float]
    measure_limit: Callable[[Setting, int], float]


def against_local(figure: str, name: str, count: tuple[int, int]) -> Row:
    """Returns a row that compares one slice of one host with the local engine."""
    return Row(
        figure,
        "local engine",
        0.6,
        count,
        lambda setting, count: setting.one.ask(name, count),
        lambda setting, count: setting.local.ask(name, count),
    )


def against_one(executors: int, client: Callable[[Setting], Client]) -> Row:
    """Returns a row that compares programs per second and executor with those of one executor."""
    return Row(
        f"executes/s times executors, {executors} executors",
        "one executor",
        0.8,
        (400, 20),
        lambda setting, count: executors * client(setting).ask("executes_slice", count),
        lambda setting, count: setting.one.ask("executes_slice", count),
    )


ROWS: Mapping[str, Row] = {
    "executes_one": against_local("executes/s, 1 device of 4", "executes_one", (2000, 20)),
    "executes_slice": against_local("executes/s, 4 devices", "executes_slice", (1000, 20)),
    "dispatched": against_local("executes/s, each 100th result is read", "dispatched", (15, 2)),
    "steps": against_local("training steps/s, each loss is read, 4 devices", "steps", (200, 5)),
    "upload": Row(
        "host to devices of 4 hosts, MB/s",
        "raw gRPC by 1 to 4",
        0.5,
        (3, 1),
        lambda setting, count: setting.four.ask("upload", count),
        lambda setting, count: raw_upload(setting.relay, count),
    ),
    "fetch": Row(
        "devices of 4 hosts to host, MB/s",
        "raw gRPC from 4 by 1",
        0.5,
        (3, 1),
        lambda setting, count: setting.four.ask("fetch", count),
        lambda setting, count: raw_fetch(setting.relay, count),
    ),
    "reshard": Row(
        "slice to slice, MB/s",
        "raw gRPC",
        0.5,
        (3, 1),
        lambda setting, count: setting.one.ask("reshard", count),
        lambda setting, count: raw_upload(setting.stream, count),
    ),
    "executors_2": against_one(2, lambda setting: setting.two),
    "executors_4": against_one(4, lambda setting: setting.four),
}


def measure(rows: Mapping[str, Row], rounds: int, is_short: bool) -> dict[str, list[list[float]]]:
    """Returns for each row the pairs of its figure and its limit."""
    found: dict[str, list[list[float]]] = {name: [] for name in rows}
    with contextlib.ExitStack() as stack:
        setting = Setting(stack)
        for number in range(rounds):
            for name, row in rows.items():
                count = row.count[is_short]
                order = [(0, row.measure), (1, row.measure_limit)]
                pair = [0.0, 0.0]
                for index, of in order if number % 2 else reversed(order):
                    pair[index] = of(setting, count)
                found[name].append(pair)
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return found


def show(
    rows: Mapping[str, Row], found: Mapping[str, list[list[float]]], result: dict[str, object]
) -> list[str]:
    """Prints the medians as a table, adds them to the result; returns which missed their aim."""
    missed = []
    print(f"{'':50}{'median':>9}{'limit':>9}  {'':20}{'ratio':>7}{'wanted':>10}")
    for name, row in rows.items():
        value, limit = (statistics.median(column) for column in zip(*found[name], strict=True))
        ratio = statistics.median(value / limit for value, limit in found[name])
        well = ratio >= row.wanted
        if not well:
            missed.append(name)
        wanted = f">= {row.wanted:g}{'' if well else ' !'}"
        print(f"{row.figure:50}{value:9,.0f}{limit:9,.0f}  {row.limit:20}{ratio:7.2f}{wanted:>10}")
        result[name] = {
            "figure": row.figure,
            "median": value,
            "limit": {"of": row.limit, "median": limit},
            "ratio": ratio,
            "wanted": f">= {row.wanted:g}",
            "rounds": found[name],
        }
    return missed


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.distributed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--short", action="store_true", help="few repetitions, and no aims: does it run?"
    )
    parser.add_argument(
        "--only", choices=[*ROWS, _SCALE], nargs="*", help="rows; all of them if omitted"
    )
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    names = arguments.only or [*ROWS, _SCALE]
    rows = {name: ROWS[name] for name in names if name in ROWS}
    result: dict[str, object] = {"load": os.getloadavg()[0]}
    missed: list[str] = []
    ratios: dict[str, list[float]] = {}
    if rows:
        found = measure(rows, arguments.rounds, arguments.short)
        missed = show(rows, found, result)
        ratios = {name: [value / limit for value, limit in pairs] for name, pairs in found.items()}
    if _SCALE in names:
        result[_SCALE] = show_scale(measure_scale(arguments.rounds, is_short=arguments.short))
    write_result("distributed", result, arguments.out, ratios)
    return exit_code([] if arguments.short else missed)


if __name__ == "__main__":
    sys.exit(main())
