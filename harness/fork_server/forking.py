"""Starts the processes of a block of code by a fork server."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.fork_server import client

__all__ = ["forking"]

_REPOSITORY = Path(__file__).parents[2]
_SERVER = "from harness.fork_server.server import main; main()"


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Gives this process a fork server, which is started with its first process."""
    servers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
    environment = {n: v for n, v in os.environ.items() if not n.startswith("JAX_")}

    def connect() -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs, client.paused():
            process = subprocess.Popen(
                [sys.executable, "-c", _SERVER, str(theirs.fileno())],
                env=environment,
                cwd=_REPOSITORY,
                pass_fds=(theirs.fileno(),),
            )
        servers.append((process, ours))
        return ours

    forks = client.ForkClient(connect, environment)
    client.install(forks)
    try:
        yield
    finally:
        forks.forget()
        for process, channel in servers:
            channel.close()
            process.wait()
