"""Clients of proxies that take turns in measuring."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from harness.own_service import ROOT

__all__ = ["Client", "running_client"]


class Client:
    """A process with JAX on one proxy."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()  # that it is ready

    def ask(self, name: str, count: int) -> float:
        """Returns the figure of a measurement."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {count}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"a client ended with {self._process.wait()}")
        return line.strip()


@contextlib.contextmanager
def running_client(address: str) -> Iterator[Client]:
    """Runs a client of the proxy at an address."""
    command = [sys.executable, "-m", "benchmarks.distributed.clients", address]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as process:
        try:
            yield Client(process)
        finally:
            process.kill()
