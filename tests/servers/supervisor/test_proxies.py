"""What becomes of a proxy that cannot be started."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness.carriers import create_proxy
from harness.processes import DEADLINE_S
from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor import proxies as module
from shared_pathways_service.servers.supervisor.proxy_requests import read_proxy_request


def test_a_disk_that_is_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_private", full)
    standby, memory, manager = mock.Mock(), mock.Mock(), mock.AsyncMock()
    standby.log_of.return_value = tmp_path / "log"
    memory.make.return_value = None
    report: Any = mock.Mock()
    proxies = module.Proxies(
        RuntimePaths(tmp_path),
        SupervisorOptions(),
        Settings.load(runtime_dir=tmp_path),
        standby=standby,
        shared_memory=memory,
        manager=manager,
        occupancy=mock.Mock(),
        report=report,
        on_change=lambda: None,
    )
    message = create_proxy(name="a", session="s")
    request = read_proxy_request(message, ["tpuv6e:2x2"], ProxyLimits())

    async def live() -> pb.Proxy:
        proxy = await proxies.create(request)
        async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(proxy.changes()) as changes:
            async for told in changes:
                if told.state != pb.Proxy.STARTING:
                    break
        await proxies.stop()
        return told

    told = asyncio.run(live())
    assert told.state == pb.Proxy.DELETED
    assert told.reason.startswith("it could not be started: [Errno 28] No space left")
    memory.remove.assert_called_once_with(told.uid)
    manager.release.assert_awaited_once()
