"""Starts an agent: a process in its own session, with a socket pair to its client."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.runtime.location import with_package_path
from shared_pathways_service.runtime.settings import private_directory
from shared_pathways_service.runtime.standard_streams import reserve_descriptors

__all__ = ["AGENT_COMMAND", "launch_agent", "let_linger"]

#: ``-P``: a module in the user's directory must not shadow a needed one.
AGENT_COMMAND = (sys.executable, "-P", "-m", "shared_pathways_service.agent")

#: Maximum number of agents' logs.
_LOGS_KEPT = 20

#: Agents that outlive their sessions, but are still children of this process.
_lingering: list[subprocess.Popen[bytes]] = []


def launch_agent(
    log: Path, command: Sequence[str] = AGENT_COMMAND
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts an agent, which gets the descriptor of its end of a socket pair as last argument.

    Its output goes to the log; old logs in the same directory are removed. The caller must end the
    process, and close the other end of the pair.
    """
    private_directory(log.parent, "SPS_STATE_DIR")
    reserve_descriptors()
    _thin_out(log.parent)
    _lingering[:] = [process for process in _lingering if process.poll() is None]
    with contextlib.ExitStack() as stack:
        mine, theirs = socket.socketpair()
        stack.enter_context(theirs)
        undo = stack.enter_context(contextlib.ExitStack())
        undo.callback(mine.close)
        with explained(log.parent, "SPS_STATE_DIR"):
            output: BinaryIO = stack.enter_context(log.open("a+b"))
        # Held until the last process that writes there has ended, so that the log is not removed.
        # (NFS requires a readable descriptor for one kind of lock, a writable one for the other.)
        with contextlib.suppress(OSError):
            fcntl.flock(output, fcntl.LOCK_SH | fcntl.LOCK_NB)
        process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[theirs.fileno()],
            env=with_package_path(os.environ),
            # A terminal's or a notebook's signals to its process group must not reach the agent.
            start_new_session=True,
        )
        undo.pop_all()
    return process, mine


def let_linger(process: subprocess.Popen[bytes]) -> None:
    """Lets an agent continue without its session; its process is reaped later."""
    _lingering.append(process)


def _thin_out(directory: Path) -> None:
    logs = []
    for path in directory.glob("*.log"):
        with contextlib.suppress(OSError):
            logs.append((path.stat().st_mtime, path))
    for _, path in sorted(logs)[:-_LOGS_KEPT]:
        with contextlib.suppress(OSError), path.open("r+b") as unused:
            fcntl.flock(unused, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
