"""What a status is made of."""

from __future__ import annotations

import asyncio

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.servers.resource_manager.status_report import (
    snapshot_events,
    status_message,
)

KIND = InstanceType.parse("tpuv6e:2x2")
SLICES = 450


def _core() -> ResourceManagerCore:
    """A service of many slices, with one tenant that runs on two and one that waits."""
    core = ResourceManagerCore(RmConfig(slices={KIND: SLICES}), None, 0.0)
    for number in range(SLICES):
        joined = m.WorkerJoined(
            slice_id=f"slice-{number}", instance_type=KIND, host_index=0, incarnation="1"
        )
        core.handle(joined, 0.0)
    for name, count in (("ada", 2), ("bob", SLICES)):
        asked = m.TenantAsked(
            request=TenantRequest(
                name=name, virtual_slices=(KIND,) * count, queue_timeout_s=float("inf")
            ),
            incarnation="1",
        )
        core.handle(asked, 0.0)
    return core


def test_an_answer_is_made_in_pieces_and_others_have_their_turn() -> None:
    async def work() -> None:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        message = await status_message(_core().status(0.0))
        beside.cancel()
        assert [one.id for one in message.slices] == [f"slice-{n}" for n in range(SLICES)]
        assert [one.name for one in message.tenants] == ["ada", "bob"]
        assert [one.tenant for one in message.queue] == ["bob"]
        assert turns > 2

    asyncio.run(work())


def test_the_report_of_one_tenant_matches_that_of_all() -> None:
    core = _core()
    whole = core.status(0.0)
    for name in ("ada", "bob", "nobody"):
        one = core.status(0.0, name)
        assert one.tenants == tuple(tenant for tenant in whole.tenants if tenant.name == name)
        assert one.queue == tuple(entry for entry in whole.queue if entry.tenant == name)
        among_all = [event for event in snapshot_events(whole) if event.tenant == name]
        own = list(snapshot_events(one))
        assert [(e.kind, e.slice, e.reason, e.data) for e in own] == [
            (e.kind, e.slice, e.reason, e.data) for e in among_all
        ]
        assert bool(own) == (name != "nobody")
