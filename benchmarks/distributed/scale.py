"""Executes/s of one program over ever more executors, and what each executor costs.

Beyond four executors, and for comparison also below, they compute nothing (`NullEngine`): what is
measured is the proxy, the streams and the executors' own part. All processes share one machine.
Processor times per execute do not depend on how many processes run at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import psutil

from benchmarks.distributed.measuring import Client, running_client
from benchmarks.proxy.running import running_proxy
from harness.proxy.executors import running_executors
from harness.proxy.forks import Forks
from harness.proxy.programs import compile_options, sharded_double
from harness.proxy.raw import split
from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.protocol import resource_manager_pb2
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.xla.shardings import Placings

__all__ = ["SIZES", "measure_scale", "show_scale"]

#: A slice of each number of hosts, with four devices each.
SIZES: Mapping[int, str] = {
    1: "tpuv6e:2x2",
    2: "tpuv6e:2x4",
    4: "tpuv6e:4x4",
    8: "tpuv6e:4x8",
    16: "tpuv6e:8x8",
    32: "tpuv6e:8x16",
    64: "tpuv6e:16x16",
}
#: The most executors with XLA.
_MOST_REAL = 4
#: Executes times executors of one measurement; and in the short form.
_EXECUTES = (1600, 16)
#: The figures that are printed, with their heads; times are in microseconds.
_COLUMNS = {
    "executes_per_s": "executes/s",
    "per_executor_us": "us/executor",
    "proxy_us": "proxy CPU",
    "executor_us": "executor CPU",
    "ready_s": "ready, s",
    "proxy_threads": "threads",
    "proxy_fds": "fds",
    "proxy_mb": "MB",
}
Figures = dict[str, float]


class _Processor:
    """The processor time of some processes so far, in seconds."""

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]

    def read(self) -> float:
        times = (process.cpu_times() for process in self._processes)
        return sum(time.user + time.system for time in times)


@dataclasses.dataclass(frozen=True)
class _Running:
    """A proxy with its executors and a client, and what does not change while it runs."""

    executors: int
    client: Client
    of_proxy: _Processor
    of_executors: _Processor
    constant: Figures

    def measure(self, executes: int) -> Figures:
        """Returns the figures of so many executes."""
        self.client.ask("executes_slice", 2)
        before = self.of_proxy.read(), self.of_executors.read()
        rate = self.client.ask("executes_slice", executes)
        spent = [
            (after - earlier) / (executes + 1) / self.executors * 1e6
            for after, earlier in zip(
                (self.of_proxy.read(), self.of_executors.read()), before, strict=True
            )
        ]
        return {
            "executes_per_s": rate,
            "per_executor_us": 1e6 / rate / self.executors,
            "proxy_us": spent[0],
            "executor_us": spent[1],
            **self.constant,
        }


def measure_scale(rounds: int, *, is_short: bool) -> dict[str, list[Figures]]:
    """Returns the figures of each round, by engine and number of executors."""
    sizes = [1, 2] if is_short else list(SIZES)
    found: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack:
        forks = stack.enter_context(contextlib.closing(Forks("harness.proxy.null_executor_forks")))
        start: dict[str, tuple[int, Callable[[], _Running]]] = {}
        for size in sizes:
            if size <= _MOST_REAL and not is_short:
                start[f"xla {size}"] = (size, functools.partial(_start_real, stack, size))
            start[f"null {size}"] = (size, functools.partial(_start_null, stack, forks, size))
        running: dict[str, _Running] = {}
        for number in range(rounds):
            order = list(start) if number % 2 else list(reversed(start))
            for name in order:
                size, begin = start[name]
                if name not in running:
                    running[name] = begin()
                executes = max(_EXECUTES[is_short] // size, 4)
                found.setdefault(name, []).append(running[name].measure(executes))
            print(f"scale: round {number + 1} of {rounds}", file=sys.stderr)
    return {name: found[name] for name in start}


def show_scale(found: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    """Prints the medians as a table; returns them with all rounds, as JSON."""
    print("".join(f"{head:>13}" for head in ("executors", *_COLUMNS.values())))
    result: dict[str, Any] = {"message_bytes": message_bytes()}
    for name, rounds in found.items():
        medians = {
            column: statistics.median(figures[column] for figures in rounds) for column in _COLUMNS
        }
        print(f"{name:>13}" + "".join(f"{medians[column]:13,.1f}" for column in _COLUMNS))
        result[name] = {**medians, "rounds": rounds}
    print(", ".join(f"{what}: {size:,.0f} bytes" for what, size in result["message_bytes"].items()))
    return result


def message_bytes() -> Figures:
    """Returns the bytes of messages, for each executor."""
    return {
        "placement": _placement_bytes(64) / 64,
        **_execute_bytes(2),
    }


def _placement_bytes(executors: int) -> int:
    message = resource_manager_pb2.PlacementExecutors(virtual_index=1, generation=1)
    for host in range(executors):
        message.executors.add(host_index=host, address="10.123.123.123:30000", token="t" * 43)
    return message.ByteSize()


def _execute_bytes(hosts: int) -> Figures:
    """Measures commands and reports of executes over some executors, for each of them."""
    executes, devices = 1000, hosts * 4
    ids = tuple(range(devices))
    with contextlib.closing(Forks("harness.proxy.null_executor_forks")) as forks:
        executors = Executors(
            _addresses(forks, hosts, ""), [i // 4 for i in ids], None, collective_timeout_s=60
        )
        with contextlib.closing(executors):
            placings = Placings([0] * devices, make=executors.client)
            client = placings.client((0,))
            raw = core_pb2.XlaCompileOptionsProto.FromString(compile_options(ids)).compile_options
            program = client.compile(sharded_double(devices), ids, client.options(raw, ids))
            spec = Spec(
                core_pb2.DTypeProto.KIND_F32,
                np.dtype(np.float32),
                (devices,),
                placings.from_wire(split(ids)),
            )
            array = client.put(spec, [np.zeros(1, np.float32)] * devices)
            run = program.runner([spec])
            links = list(dict.fromkeys(array.links))
            before = [(link.sent_bytes, link.received_bytes) for link in links]
            for _ in range(executes):
                (array,) = run([array])
            spent = [
                (link.sent_bytes - sent, link.received_bytes - received)
                for link, (sent, received) in zip(links, before, strict=True)
            ]
    sent, received = (sum(column) / executes / hosts for column in zip(*spent, strict=True))
    return {"commands of an execute": sent, "reports of an execute": received}


def _start_real(stack: contextlib.ExitStack, size: int) -> _Running:
    flags = [(f"--instance_type={SIZES[size]}", f"--host_index={host}") for host in range(size)]
    executors = stack.enter_context(running_executors(*flags))
    pids = [process.pid for process in executors.processes]
    return _start(stack, size, executors.proxys_flags, pids)


def _start_null(stack: contextlib.ExitStack, forks: Forks, size: int) -> _Running:
    parent = psutil.Process(forks.pid)
    others = {process.pid for process in parent.children()}
    token_file = stack.enter_context(_token_file())
    flags = (
        "--engine=distributed",
        f"--executors={','.join(_addresses(forks, size, token_file))}",
        f"--executor_token_file={token_file}",
    )
    pids = [process.pid for process in parent.children() if process.pid not in others]
    return _start(stack, size, flags, pids)


def _addresses(forks: Forks, size: int, token_file: str) -> list[str]:
    kind = next(name for hosts, name in SIZES.items() if hosts >= size)
    flags = (f"--instance_type={kind}", f"--token_file={token_file}")
    return [f"{LOOPBACK}:{forks.port(*flags, f'--host_index={host}')}" for host in range(size)]


def _start(
    stack: contextlib.ExitStack, size: int, flags: Sequence[str], executors: Sequence[int]
) -> _Running:
    began = time.perf_counter()
    proxy = stack.enter_context(running_proxy(f"--virtual_slices={SIZES[size]}", *flags))
    ready_s = time.perf_counter() - began
    client = stack.enter_context(running_client(proxy.address))
    client.ask("executes_slice", 2)
    process = psutil.Process(proxy.pid)
    return _Running(
        size,
        client,
        _Processor(proxy.pid),
        _Processor(*executors),
        {
            "ready_s": ready_s,
            "proxy_threads": process.num_threads(),
            "proxy_fds": process.num_fds(),
            "proxy_mb": process.memory_info().rss / 2**20,
        },
    )


@contextlib.contextmanager
def _token_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("a-token")
        file.flush()
        yield file.name
