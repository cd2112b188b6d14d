"""What the pod of a proxy mounts, where an object of that name exists already."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from harness.session_requests import with_fields
from shared_pathways_service.errors import ProxyFailed
from shared_pathways_service.homes.kubernetes.proxy_objects import create_mounted
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.link_parts import LinkInputs
from tests.kube.nowhere import NowhereApi
from tests.manifests.proxy_jobs import GOOGLES

LINKED = with_fields(GOOGLES, link=LinkInputs(keep_s=600, image="python:3.13-slim"))


class Cluster(NowhereApi):
    """A cluster that has an object of the name already, of this kind."""

    def __init__(self, kind: str, *, may_be_own: bool) -> None:
        super().__init__()
        self._kind = kind
        self._may_be_own = may_be_own
        self.asked: list[str] = []

    async def create(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        assert path.startswith(f"/api/v1/namespaces/{LINKED.namespace}/"), timeout_s
        self.asked.append(body["kind"])
        if body["kind"] != self._kind:
            return dict(body)
        raise ApiError(
            "it exists",
            status=409,
            reason="AlreadyExists",
            may_have_succeeded=self._may_be_own,
        )


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_an_object_of_another_owner_is_refused(kind: str) -> None:
    cluster = Cluster(kind, may_be_own=False)
    named = f"{kind} isc-proxy-ada-x7k2p-6f9c1d0e in namespace team-a exists already"
    with pytest.raises(ProxyFailed, match=named):
        asyncio.run(create_mounted(cluster, LINKED, "token", "uid-1", tried=set()))


@pytest.mark.parametrize("kind", ["Secret", "ConfigMap"])
def test_an_object_that_an_unanswered_try_may_have_created_is_its_own(kind: str) -> None:
    cluster = Cluster(kind, may_be_own=True)
    asyncio.run(create_mounted(cluster, LINKED, "token", "uid-1", tried=set()))
    assert cluster.asked == ["Secret", "ConfigMap"]


def test_objects_of_an_earlier_try_for_the_same_job_are_its_own() -> None:
    cluster = Cluster("ConfigMap", may_be_own=False)
    tried = {("uid-1", "ConfigMap")}
    asyncio.run(create_mounted(cluster, LINKED, "token", "uid-1", tried=tried))
    assert tried == {("uid-1", "ConfigMap"), ("uid-1", "Secret")}
    with pytest.raises(ProxyFailed, match="exists already"):
        asyncio.run(create_mounted(cluster, LINKED, "token", "uid-2", tried=tried))
