"""Gives each process of pytest that runs tests a fork server, as long as `SPS_TEST_FORKS` is not 0.

A test with `@pytest.mark.real_starts` starts its processes anew, and so do these theirs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator

import pytest

from harness.fork_server import client
from harness.fork_server.forking import forking
from harness.layers.roles import runs_tests

_SERVERS = pytest.StashKey[contextlib.ExitStack]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_starts: starts its processes without forking")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if not runs_tests(config) or os.environ.get("SPS_TEST_FORKS") == "0" or sys.platform != "linux":
        return
    config.stash[_SERVERS] = contextlib.ExitStack()
    config.stash[_SERVERS].enter_context(forking())


def pytest_unconfigure(config: pytest.Config) -> None:
    if (servers := config.stash.get(_SERVERS, None)) is not None:
        servers.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("real_starts") is None:
        return (yield)
    with client.paused():
        return (yield)
