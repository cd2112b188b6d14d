"""A command whose user may not reach the resource manager's pod says so, and does not wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.cli.commands.manager import events
from shared_pathways_service.cli.lookups.place_readers import manager_of
from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.paths import port_forward
from shared_pathways_service.operations.service_readers.kubernetes import open_cluster
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from tests.cluster_state.services import SERVICE
from tests.homes.kubernetes.heads import ScriptedApi, denied


@pytest.mark.usefixtures("own_directories")
def test_each_way_of_asking_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    async def service() -> Any:
        return SERVICE

    async def test() -> None:
        api = ScriptedApi({port_forward(SERVICE.namespace, "head"): denied})

        @contextlib.asynccontextmanager
        async def opened(_where: ServiceChoice) -> AsyncIterator[Any]:
            yield SimpleNamespace(api=api, service=service)

        monkeypatch.setattr(open_cluster, "opened", opened)
        place, settings = Place(context="c"), Settings.load()
        async with asyncio.timeout(deadline(90.0)), manager_of(place, settings) as manager:
            with pytest.raises(AccessDenied, match="not you"):
                await manager.ask(manager.stub.GetUsage, pb.GetUsageRequest(), limit=Timeout(600.0))
        with pytest.raises(AccessDenied, match="not you"):
            async with asyncio.timeout(deadline(90.0)):
                await events._show(place, pb.GetHistoryRequest(), follow=False, as_json=False)
        await api.close()

    run_async(test())
