"""Containers end whenever they are killed, and whatever they have started."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest

from harness.deadlines import deadline
from harness.layers.needed_programs import needed_program
from shared_pathways_service.testing.testbed.launching import INSTALL_UTIL_LINUX
from shared_pathways_service.testing.testbed.node_agent.container import (
    Container,
    Isolation,
    LogFile,
    find_isolation,
)

DEADLINE_S = deadline(60.0)


@pytest.fixture(autouse=True)
def setpriv() -> None:
    needed_program("setpriv", INSTALL_UTIL_LINUX)


async def started(path: Path, words: str, isolation: Isolation) -> Container:
    return await Container.start(
        ["sh", "-c", words],
        env={"PATH": os.environ["PATH"]},
        directory=path,
        log=LogFile(path / "log"),
        isolation=isolation,
    )


async def killed_at_its_fork(path: Path, isolation: Isolation) -> None:
    """Kills a container as if process 1 had appeared just after a look for it."""
    container = await started(path, "echo up; sleep 600", isolation)
    give_up_at = time.monotonic() + DEADLINE_S
    pid = None
    while pid is None:
        assert time.monotonic() < give_up_at
        pid = container.pid
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Container, "pid", None)
        container.kill()
    await container.wait_for_process_1()
    assert await container.wait() == 137
    assert not psutil.pid_exists(pid)


@pytest.mark.race
def test_a_container_that_is_killed_while_it_starts_ends(tmp_path: Path) -> None:
    isolation = find_isolation()

    async def all_rounds() -> None:
        async with asyncio.timeout(DEADLINE_S):
            for _ in range(30):
                await killed_at_its_fork(tmp_path, isolation)

    asyncio.run(all_rounds())


@pytest.mark.parametrize("isolation", [find_isolation(), Isolation(())], ids=["best", "none"])
def test_a_container_ends_with_its_process_1(tmp_path: Path, isolation: Isolation) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            container = await started(tmp_path, "sleep 600 & echo up; exit 7", isolation)
            assert await container.wait() == 7

    asyncio.run(run())
    assert (tmp_path / "log").read_text().endswith("stdout F up\n")
    left = [p for p in psutil.process_iter(["cwd"]) if p.info["cwd"] == str(tmp_path)]
    assert left == []
