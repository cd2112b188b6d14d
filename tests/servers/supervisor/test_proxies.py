"""What becomes of a proxy that cannot be started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path

import pytest

from harness.carriers import create_proxy
from harness.processes import DEADLINE_S, run_async
from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor import proxies as module
from shared_pathways_service.servers.supervisor.background import Background
from shared_pathways_service.servers.supervisor.manager_link import ManagerLink
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxy_requests import read_proxy_request
from shared_pathways_service.servers.supervisor.shared_memory import SharedMemory
from shared_pathways_service.servers.supervisor.standby import StandbyPool


class NotingMemory(SharedMemory):
    """Notes which directories were removed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.removed: list[str] = []

    def remove(self, uid: str) -> None:
        self.removed.append(uid)
        super().remove(uid)


class NotingManager(ManagerLink):
    """A link to no resource manager, which notes the released tenants."""

    def __init__(self, address: str, token: str) -> None:
        super().__init__(address, token)
        self.released: list[str] = []

    async def release(self, tenant: str, reason: str) -> None:
        del reason
        self.released.append(tenant)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(module, "write_private", full)
    settings = Settings.load(runtime_dir=tmp_path)
    memory = NotingMemory(settings)
    message = create_proxy(name="a", session="s")
    request = read_proxy_request(message, ["tpuv6e:2x2"], ProxyLimits())

    async def live() -> tuple[pb.Proxy, list[str]]:
        manager = NotingManager("unix:/none", "token")
        proxies = module.Proxies(
            RuntimePaths(tmp_path),
            SupervisorOptions(),
            settings,
            standby=StandbyPool(0, ServiceLogs(tmp_path), Background(lambda _: None), lambda: None),
            shared_memory=memory,
            manager=manager,
            occupancy=Occupancy(60.0, 0.0),
            report=lambda _: None,
            on_change=lambda: None,
        )
        proxy = await proxies.create(request)
        async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(proxy.changes()) as changes:
            async for message in changes:
                if message.state != pb.Proxy.STARTING:
                    break
        await proxies.stop()
        return message, manager.released

    ended, released = run_async(live())
    assert ended.state == pb.Proxy.EXITED
    assert not ended.HasField("exit_code")
    assert ended.reason.startswith(f"cannot write in {tmp_path}: {tmp_path}/p")
    assert "No space left on device (free space there" in ended.reason
    assert "SPS_RUNTIME_DIR" in ended.reason
    assert memory.removed == [ended.uid]
    assert released == ["a"]
