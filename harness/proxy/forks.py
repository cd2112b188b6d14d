"""Starts servers by forking, which saves each of them the imports, and shares their memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from harness.processes import REPOSITORY

__all__ = ["Forks", "fork_for_each_line"]


class Forks:
    """A process that forks servers, which end with it.

    Args:
      module: What it runs: `fork_for_each_line`.

    Attributes:
      pid: Its process id.
    """

    def __init__(self, module: str) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", module], stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY
        )
        self.pid = self._process.pid

    def port(self, *flags: str) -> int:
        """Starts a server; returns the port that it serves."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([*flags, f"--parent_pid={self.pid}"]) + "\n")
        self._process.stdin.flush()
        port: int = json.loads(self._process.stdout.readline())["port"]
        return port

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()


def fork_for_each_line(main: Callable[[Sequence[str]], NoReturn]) -> None:
    """Forks a server for each line of standard input: a JSON list of its flags.

    Prints the report of each that serves. What is imported before must start no thread, as a fork
    loses it.

    Args:
      main: Runs a server with flags.
    """
    # (Nothing waits for them.)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork():
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        report, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(nowhere, fd)
        main([*json.loads(line), f"--ready_fd={report}"])
