"""Starts executors by forking, which saves each of them a second of imports.

    python -m harness.proxy.executor_forks

Reads flags of executors, as a JSON list on each line, and prints the report of each that serves.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from shared_pathways_service.servers.executor.__main__ import main

# What an executor imports when it serves. (None of it starts a thread, which a fork would lose.)
from shared_pathways_service.servers.executor.executor_commands import Commands
from shared_pathways_service.servers.executor.executor_service import ExecutorService
from shared_pathways_service.servers.xla import xla, xla_internals

__all__ = ["Commands", "ExecutorService", "xla", "xla_internals"]


def serve() -> None:
    """Forks an executor for each line."""
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


if __name__ == "__main__":
    serve()
