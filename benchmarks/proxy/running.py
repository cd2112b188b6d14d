"""Runs proxies, servers that do less, and the processes that measure them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.proxy.servers import SLICES
from harness.own_service import ROOT
from harness.processes import ServerProcess

PROXY = "shared_pathways_service.servers.proxy"

Figures = Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Proxy:
    """A proxy that runs."""

    address: str
    pid: int


@contextlib.contextmanager
def running_proxy(*flags: str) -> Iterator[Proxy]:
    """Runs a proxy with the flags that one of the embedded service has."""
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        socket = f"{directory}/s"
        usual = [
            f"--virtual_slices={','.join(SLICES)}",
            f"--server_socket={socket}",
            f"--last_requests_file={directory}/last",
            f"--exit_report={directory}/exit",
        ]
        with ServerProcess(PROXY, [*usual, *flags]) as process:
            assert process.ready is not None, "\n".join(process.lines)
            yield Proxy(f"unix:{socket}", process.pid)


def with_proxy(measure: Callable[[Proxy], Figures], *flags: str) -> Figures:
    """Measures a new proxy."""
    with running_proxy(*flags) as proxy:
        return measure(proxy)


@contextlib.contextmanager
def less(kind: str, *arguments: str) -> Iterator[str]:
    """Runs one of the servers that do less; gives its socket."""
    with tempfile.TemporaryDirectory(prefix="sps") as directory:
        command = [sys.executable, "-m", "benchmarks.proxy.servers", kind, f"{directory}/s"]
        command += arguments
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
        ) as server:
            assert server.stdout is not None
            try:
                if server.stdout.readline() != b"ready\n":
                    raise RuntimeError(f"the {kind} server did not start")
                yield f"{directory}/s"
            finally:
                server.kill()


def client(kind: str, *arguments: str, env: Mapping[str, str] | None = None) -> Figures:
    """Runs one of the measuring processes to its end."""
    command = [sys.executable, "-m", "benchmarks.proxy.clients", kind, *arguments]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        timeout=900,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def at_once(kind: str, addresses: Sequence[str]) -> list[Figures]:
    """Runs one for each address; all begin to measure together."""
    start = str(time.time() + 15)
    command = [sys.executable, "-m", "benchmarks.proxy.clients", kind]
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen([*command, address, start], stdout=subprocess.PIPE, cwd=ROOT)
            )
            for address in addresses
        ]
        return [json.loads(each.communicate(timeout=300)[0].splitlines()[-1]) for each in running]
