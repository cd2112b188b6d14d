"""Starts proxies ahead of their tenants, because imports are most of a proxy's start."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs
from shared_pathways_service.servers.supervisor.background import Background
from shared_pathways_service.servers.supervisor.child import Child
from shared_pathways_service.servers.supervisor.command_lines import proxy_command
from shared_pathways_service.servers.supervisor.restarts import RestartPolicy

__all__ = ["StandbyPool"]


class StandbyPool:
    """Keeps a number of started proxies, which may be 0."""

    def __init__(
        self, count: int, logs: ServiceLogs, background: Background, on_change: Callable[[], None]
    ) -> None:
        self._count = count
        self._logs = logs
        self._background = background
        self._on_change = on_change
        self._numbers = itertools.count()
        self._warm: list[Child] = []
        self._changed = asyncio.Event()

    @property
    def children(self) -> list[Child]:
        """The proxies that wait for a tenant."""
        return [child for child in self._warm if child.exit_code is None]

    async def start(self) -> None:
        """Starts the proxies, and replaces used ones."""
        for _ in range(self._count):
            await self._start_one()
        self._background.start(self._keep_full())

    def refill(self) -> None:
        """Requests to replace used proxies now."""
        self._changed.set()

    def log_of(self, name: str) -> Path:
        """Returns the log of a proxy of this name."""
        return self._logs.path(f"proxy-{name}")

    async def launch(self, name: str, arguments: Callable[[int], Sequence[str]]) -> Child:
        """Starts a proxy from a waiting one, if there is one; `arguments` gets the ready_fd."""
        if not self.children:
            return await self.launch_cold(name, arguments)
        child = self.children[0]
        self._warm.remove(child)
        child.role, child.name = "proxy", name
        child.log = self._logs.rename(child.log, self.log_of(name))
        await child.write_line(json.dumps(list(arguments(child.ready_fd))))
        return child

    async def launch_cold(self, name: str, arguments: Callable[[int], Sequence[str]]) -> Child:
        """Like `launch`, for a proxy whose flags must be known before it imports anything."""
        return await Child.start(
            lambda fd: proxy_command(*arguments(fd)), role="proxy", name=name, log=self.log_of(name)
        )

    async def stop(self) -> None:
        """Ends waiting proxies, after their replacement was stopped."""
        await asyncio.gather(*(child.stop(timeouts.STANDBY_GRACE) for child in self._warm))

    def kill(self) -> None:
        """Kills waiting proxies; call `stop` afterwards."""
        for child in self._warm:
            child.kill()

    async def _keep_full(self) -> None:
        policy = RestartPolicy()
        while True:
            await self._changed.wait()
            self._changed.clear()
            for child in self._warm.copy():
                if child.exit_code is not None:
                    self._warm.remove(child)
                    await asyncio.sleep(policy.next_delay(child.lived_s) or 0.0)
            while len(self._warm) < self._count:
                await self._start_one()

    async def _start_one(self) -> None:
        name = f"standby-{next(self._numbers)}"
        child = await Child.start(
            lambda _fd: proxy_command("--standby", f"--parent_pid={os.getpid()}"),
            role="standby",
            name=name,
            log=self._logs.path(name),
            with_stdin=True,
        )
        self._warm.append(child)
        self._on_change()
        self._background.start(self._watch(child))

    async def _watch(self, child: Child) -> None:
        await child.wait()
        if child in self._warm:
            self._changed.set()
            self._on_change()
