"""Relays for tests, on plain connections and on TLS."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.pump import PumpTimes
from shared_pathways_service.tunnel.relay import Relay, RelayOptions, TunnelFailure
from tests.tunnel.api_server import ApiServer

DEADLINE_S = deadline(90.0)


class Rig:
    """A relay before an API server."""

    def __init__(self, server: ApiServer, relay: Relay, address: str) -> None:
        self.server = server
        self.relay = relay
        self.address = address
        self.failures: list[TunnelFailure] = []
        self.failed = asyncio.Event()

    def told(self, failure: TunnelFailure) -> None:
        self.failures.append(failure)
        self.failed.set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.address.startswith("unix:"):
            return await asyncio.open_unix_connection(self.address.removeprefix("unix:"))
        host, port = self.address.split(":")
        return await asyncio.open_connection(host, int(port))

    async def failure(self) -> TunnelFailure:
        """Waits for the first failure."""
        await self.failed.wait()
        return self.failures[0]


class Rigs:
    """Makes rigs, all alike."""

    def __init__(self, root: Path, *, has_tls: bool) -> None:
        self._root = root
        self._has_tls = has_tls

    def run(
        self,
        server: ApiServer,
        test: Callable[[Rig], Awaitable[None]],
        *,
        local_port: int | None = None,
        redial_s: float = 20.0,
        dial_timeout_s: float = 10.0,
        pump: PumpTimes | None = None,
    ) -> None:
        """Runs a test, and sees to it that nothing of the relay is left."""
        options = RelayOptions(
            redial=Timeout(redial_s), dial=Timeout(dial_timeout_s), pump=pump or PumpTimes()
        )

        async def body() -> None:
            async with asyncio.timeout(DEADLINE_S), self._rig(server, options, local_port) as rig:
                await test(rig)

        run_async(body())

    @contextlib.asynccontextmanager
    async def _rig(
        self, server: ApiServer, options: RelayOptions, local_port: int | None
    ) -> AsyncIterator[Rig]:
        certificates = self._root / "tls"
        certificates.mkdir()
        sockets = self._root / "r"
        async with server.serve(certificates if self._has_tls else None):
            before = asyncio.all_tasks()
            rig: Rig | None = None
            relay = Relay(
                server.dial,
                pod="proxy-x",
                runtime_dir=sockets,
                local_port=local_port,
                on_failure=lambda failure: rig.told(failure) if rig else None,
                options=options,
            )
            async with relay:
                rig = Rig(server, relay, await relay.start())
                yield rig
            ours = {t for t in asyncio.all_tasks() - before if "Relay" in repr(t.get_coro())}
            assert not ours
            assert not sockets.exists() or not list(sockets.iterdir())


@pytest.fixture(params=["plain", "tls"])
def rigs(request: pytest.FixtureRequest, own_directories: Path) -> Rigs:
    return Rigs(own_directories, has_tls=request.param == "tls")
