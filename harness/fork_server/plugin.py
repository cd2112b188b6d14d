"""Gives each process of pytest that runs tests a fork server, as long as `SPS_TEST_FORKS` is not 0.

A test with `@pytest.mark.real_starts` starts its processes anew, and so do these theirs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from harness.fork_server import client

_REPOSITORY = Path(__file__).parents[2]
_SERVER = "from harness.fork_server.server import main; main()"
_SERVERS = pytest.StashKey[list[tuple[subprocess.Popen[bytes], socket.socket]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_starts: starts its processes without forking")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    if not runs_tests or os.environ.get("SPS_TEST_FORKS") == "0" or sys.platform != "linux":
        return
    servers = config.stash[_SERVERS] = []
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

    client.install(client.ForkClient(connect, environment))


def pytest_unconfigure(config: pytest.Config) -> None:
    for process, channel in config.stash.get(_SERVERS, []):
        channel.close()
        process.wait()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("real_starts") is None:
        return (yield)
    with client.paused():
        return (yield)
