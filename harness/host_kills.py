"""Kills a host of an embedded service with the engine `distributed`: a worker with its executor."""

from __future__ import annotations

import contextlib
import os
import signal

import psutil

from harness.programs import status

__all__ = ["HOST", "kill_host"]

#: The modules of a host's processes: what `kill_host` returns.
HOST = (
    "shared_pathways_service.servers.worker",
    "shared_pathways_service.servers.executor",
)


def kill_host(virtual_index: int) -> tuple[str, ...]:
    """Kills, from outside, the host of a slice that has one, of a service with one tenant.

    Args:
      virtual_index: The tenant's number of the slice.

    Returns:
      The module of each killed process.
    """
    told = status()
    [slice_id] = [one["id"] for one in told["slices"] if one["virtual_index"] == virtual_index]
    [worker] = [
        psutil.Process(process["pid"])
        for process in told["processes"]
        if (process["role"], process["slice"]) == ("worker", slice_id)
    ]
    host = [worker, *worker.children(recursive=True)]
    commands = [process.cmdline() for process in host]
    for process in host:
        # (An executor may have seen its worker's end.)
        with contextlib.suppress(ProcessLookupError):
            # Each has a process group of its own.
            os.killpg(process.pid, signal.SIGKILL)
    # (The worker's fork server runs no module.)
    return tuple(command[command.index("-m") + 1] for command in commands if "-m" in command)
