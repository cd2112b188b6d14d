"""The link to a resource manager whose pod is gone, and to one that may not be reached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from shared_pathways_service.errors import AccessDenied, ServiceNotReady, SharedPathwaysError
from shared_pathways_service.homes import kubernetes_manager
from shared_pathways_service.homes.base import HomeEvent, unheard
from shared_pathways_service.homes.kubernetes_manager import ManagerLink
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import port_forward
from shared_pathways_service.kube.tokens import static_token
from tests.core.kubernetes.test_readiness import SERVICE, head
from tests.processes import run_async

# (Errors are made anew: one that was raised holds on to where it was.)


def denied() -> SharedPathwaysError:
    return AccessDenied("not you", verb="create", resource="pods/portforward")


def gone() -> SharedPathwaysError:
    """Returns what a kubelet says of a pod that has ended and is still there."""
    return ApiError("cannot forward: pod not found", status=500)


class ScriptedApi(KubeApi):
    """Knows one pod, which is the head, and answers port-forwards by pod."""

    def __init__(self, answers: Mapping[str, Callable[[], SharedPathwaysError]]) -> None:
        super().__init__(ClusterAccess(server="http://nowhere", tls=None, tokens=static_token()))
        self._answers = answers
        self.dialled: list[str] = []

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"items": [head()]}

    async def upgrade(self, path: str, **_: Any) -> aiohttp.ClientResponse:
        self.dialled.append(path)
        error = self._answers[path]()
        raise error


@contextlib.asynccontextmanager
async def link(api: KubeApi, directory: Path, pod: str) -> AsyncIterator[ManagerLink]:
    made = ManagerLink(api, SERVICE, runtime_dir=directory / "r", head=pod)
    await made.open()
    made.listen("ada")
    try:
        yield made
    finally:
        await made.close()


def test_an_evicted_head_is_given_up_and_a_refusal_is_told(own_directories: Path) -> None:
    old, new = (port_forward(SERVICE.namespace, pod) for pod in ("evicted", "head"))
    api = ScriptedApi({old: gone, new: denied})

    async def test() -> None:
        async with asyncio.timeout(90.0), link(api, own_directories, "evicted") as made:
            with pytest.raises(AccessDenied, match="not you"):
                await made.wait_until_listening(unheard)
        await api.close()

    run_async(test())
    assert api.dialled == [old, new]


def test_a_manager_that_does_not_answer_is_told_and_is_not_the_proxys_fault(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_manager, "_ANSWER_S", 3.0)
    api = ScriptedApi({port_forward(SERVICE.namespace, "head"): gone})
    told: list[HomeEvent] = []

    said = "the resource manager of pw does not answer: cannot forward: pod not found"

    async def test() -> None:
        async with asyncio.timeout(90.0), link(api, own_directories, "head") as made:
            with pytest.raises(ServiceNotReady, match=said):
                await made.wait_until_listening(told.append)
        await api.close()

    run_async(test())
    # Each failure once, however often it was met.
    assert [(news.kind, news.reason) for news in told] == [("service.waiting", said)]
    assert len(api.dialled) > 1
