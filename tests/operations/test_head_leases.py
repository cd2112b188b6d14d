"""What a command created for a service's Lease goes with a refusal, and nothing else does."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.lease_parts import lease_objects
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.head_leases import ensure_lease, with_lease
from shared_pathways_service.operations.service_objects import NewObjects, undone_if_refused

OURS = ServiceInputs(
    name="pw",
    namespace="team-a",
    instances={"tpuv6e:2x2": 2},
    image="r.io/shared-pathways-service/server:1",
)
OBJECTS = lease_objects("pw", "team-a")


class Api:
    """The requests about a Lease that a cluster would answer; `uids` are by resource."""

    def __init__(self, *, theirs: tuple[str, ...] = (), denied: str = "") -> None:
        self.uids = {resource: f"their {resource}" for resource in theirs}
        self.denied = denied

    async def request(
        self, _method: str, path: str, *, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        resource = path.rsplit("/", maxsplit=1)[-1]
        if resource == self.denied:
            raise AccessDenied("no", verb="create", resource=resource, namespace="", rule="")
        if resource in self.uids:
            raise ApiError("it is there", status=409, reason="AlreadyExists")
        self.uids[resource] = f"our {resource}"
        return {**body, "metadata": {**body["metadata"], "uid": self.uids[resource]}}

    async def find(self, path: str) -> Mapping[str, Any] | None:
        return OBJECTS.get(path.split("/")[-2])

    async def delete(self, path: str, *, uid: str) -> bool:
        resource = path.split("/")[-2]
        assert self.uids.pop(resource) == uid
        return True


def cluster(api: Api) -> Cluster:
    return Cluster(cast("KubeApi", api), "team-a")


def test_what_a_concurrent_deploy_created_is_kept() -> None:
    api = Api(theirs=("leases", "serviceaccounts"))

    async def deploy() -> None:
        place = cluster(api)
        new = NewObjects(place)
        async with undone_if_refused(place, "pw", new.undo):
            inputs, why_not = await with_lease(place, OURS, new)
            assert (inputs.lease, why_not) == (True, "")
            await ensure_lease(place, inputs, new)
            assert api.uids["rolebindings"] == "our rolebindings"
            raise ApiError("no room", status=403)

    with pytest.raises(ApiError, match="no room"):
        asyncio.run(deploy())
    assert api.uids == {one: f"their {one}" for one in ("leases", "serviceaccounts")}


def test_a_service_that_gets_no_lease_leaves_nothing_of_it() -> None:
    api = Api(denied="rolebindings")

    async def run() -> tuple[ServiceInputs, str]:
        place = cluster(api)
        return await with_lease(place, OURS, NewObjects(place))

    assert asyncio.run(run()) == (dataclasses.replace(OURS, lease=False), "no")
    assert api.uids == {}
