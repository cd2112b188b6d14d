"""Ends the service that a test of the embedded home started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator

import grpc
import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import run_async
from shared_pathways_service.homes.embedded.discovery import find
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.settings import Settings


@pytest.fixture(autouse=True)
def ends_the_service() -> Iterator[None]:
    """Ends the detached service that a test left, as nobody else would for a minute."""
    yield
    run_async(_shut_down())


async def _shut_down() -> None:
    link = await find(Settings.load())
    if link is None:
        return
    with contextlib.suppress(grpc.RpcError):
        await link.supervisor.Shutdown(
            pb.ShutdownRequest(reason="the test is over"),
            metadata=link.metadata,
            timeout=deadline(30.0),
        )
    supervisor = link.state.supervisor
    await link.close()
    await asyncio.to_thread(
        wait_until,
        "the service's end",
        lambda: not supervisor.is_alive() or _reaped(supervisor.pid),
    )


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return False
