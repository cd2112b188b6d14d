"""The owner of the core, when something goes wrong that nobody can mend while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from pathlib import Path

import grpc
import pytest

from shared_pathways_service.core.rm import messages as m
from shared_pathways_service.core.rm.config import RmConfig
from shared_pathways_service.core.rm.core import ResourceManagerCore
from shared_pathways_service.core.topology import InstanceType
from shared_pathways_service.servers.resource_manager.authority import Authority, SteadyClock
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded
from shared_pathways_service.servers.resource_manager.store import Store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams

KIND = InstanceType.parse("tpuv6e:2x2")
ADA = m.TenantAsked(
    tenant="ada", incarnation="1", virtual_slices=(KIND,), queue_timeout_s=float("inf")
)
RELEASED = m.TenantReleased(tenant="ada", reason="done")


class Made:
    """An authority with a tenant that waits.

    Attributes:
      fatal: What it said that it cannot go on for.
    """

    def __init__(self, path: Path) -> None:
        clock = SteadyClock()
        self.store = Store(str(path / "state"), first_start=True)
        self.core = ResourceManagerCore(RmConfig(slices={KIND: 1}), None, clock())
        self.fatal: list[str] = []
        self.authority = Authority(
            self.core,
            self.store,
            WorkerStreams(10.0),
            TenantStreams(15.0),
            clock=clock,
            watcher_limit=10,
            on_event=lambda _event: None,
            on_fatal=self.fatal.append,
        )
        self.authority.join_tenant(ADA, 1)


def test_what_cannot_be_written_is_answered_to_nobody(tmp_path: Path) -> None:
    async def work() -> None:
        made = Made(tmp_path)
        made.store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(StreamEnded, match="ada is not released") as caught:
            made.authority.release(RELEASED)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert made.fatal == [
            "cannot write the state file: attempt to write a readonly database",
        ]

    asyncio.run(work())


def test_a_core_that_stumbles_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        made = Made(tmp_path)

        def stumble(_event: object, _now: float) -> list[m.Instruction]:
            raise KeyError("slice-0")

        monkeypatch.setattr(made.core, "handle", stumble)
        with pytest.raises(KeyError):
            made.authority.join_tenant(dataclasses.replace(ADA, tenant="bob"), 1)
        assert made.fatal == ["cannot go on after TenantAsked: KeyError('slice-0')"]
        monkeypatch.undo()
        with pytest.raises(StreamEnded):
            made.authority.release(RELEASED)
        assert made.core.knows("ada"), "nothing is handed to it any more"
        with contextlib.closing(Store(str(tmp_path / "state"), first_start=False)) as again:
            assert [grant.tenant for grant in again.restored.grants] == ["ada"]

    asyncio.run(work())
