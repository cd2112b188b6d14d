"""A proxy whose log nobody may read."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.homes.base import HomeEvent, ProxySpec
from shared_pathways_service.homes.kubernetes_proxy import ProxyFollower
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.tokens import static_token
from tests.core.kubernetes.objects import job, running

KIND = "tpuv6e:2x2"


class SilentApi(KubeApi):
    """Has one pod that runs and goes on running; refuses its log."""

    def __init__(self) -> None:
        super().__init__(ClusterAccess(server="http://nowhere", tls=None, tokens=static_token()))

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        if path.endswith("/log"):
            raise AccessDenied("not you", verb="get", resource="pods/log")

        async def chunks() -> AsyncIterator[bytes]:
            if path.endswith("/pods"):
                pod = running()
                pod["metadata"]["resourceVersion"] = "2"
                yield json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n"
            await asyncio.Event().wait()

        yield chunks()


def test_a_log_that_may_not_be_read_is_told() -> None:
    async def work() -> list[HomeEvent]:
        told: list[HomeEvent] = []
        warned = asyncio.Event()

        def tell(event: HomeEvent) -> None:
            told.append(event)
            if event.kind == "service.warning":
                warned.set()

        made: dict[str, Any] = job()
        made["metadata"]["resourceVersion"] = "1"
        spec = ProxySpec(name="j", session="s", virtual_slices=(KIND,))
        follower = ProxyFollower(SilentApi(), "n", spec, made, tell=tell, reads_log=True)
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(warned.wait(), 60)
        assert not following.done(), "the session goes on without it"
        following.cancel()
        await asyncio.wait({following})
        return told

    told = asyncio.run(work())
    assert [event.kind for event in told] == ["proxy.serving", "service.warning"]
    assert "log" in told[-1].reason
    assert "not you" in told[-1].reason
