"""What a command created for a service's Lease goes with a refusal, and nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.cli.commands.clusters.deploy import _deploy
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.lease_parts import lease_objects
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.head_leases import ensure_lease, with_lease
from shared_pathways_service.operations.service_objects import NewObjects, undone_if_refused
from shared_pathways_service.operations.service_readers.kubernetes import open_cluster

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


class Shared:
    """A cluster in which two deploys create one service: the first is refused, the second not.

    The second one waits with its JobSet until `may_create` is set.
    """

    def __init__(self, *, creates_before_undo: bool) -> None:
        self.uids: dict[str, str] = {}
        self.has_found_lease = asyncio.Event()
        self.may_create = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.creates_before_undo = creates_before_undo


class SharedApi:
    """One deploy's requests to a shared cluster."""

    def __init__(self, shared: Shared, *, is_refused: bool) -> None:
        self.shared = shared
        self.is_refused = is_refused

    async def request(
        self, _method: str, path: str, *, body: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        resource = path.rsplit("/", maxsplit=1)[-1]
        uids = self.shared.uids
        if resource in uids:
            raise ApiError("it is there", status=409, reason="AlreadyExists")
        uids[resource] = f"{resource} of {id(self)}, {len(uids)}"
        return {**body, "metadata": {**body["metadata"], "uid": uids[resource]}}

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.is_refused:
            await self.shared.has_found_lease.wait()
            raise ApiError("no room", status=403)
        self.shared.has_found_lease.set()
        await self.shared.may_create.wait()
        return await self.request("POST", path, body=body)

    async def find(self, path: str) -> Mapping[str, Any] | None:
        resource = path.split("/")[-2]
        uid = self.shared.uids.get(resource)
        if resource == "jobsets" and self.is_refused and self.shared.creates_before_undo:
            self.shared.may_create.set()
            await self.shared.has_ended.wait()
        return OBJECTS.get(resource, {"kind": resource}) if uid else None

    async def delete(self, path: str, *, uid: str) -> bool:
        resource = path.split("/")[-2]
        assert self.shared.uids.pop(resource) == uid
        return True


@pytest.mark.parametrize("creates_before_undo", [False, True])
def test_a_service_has_its_lease_after_the_refusal_of_another_deploy(
    *, creates_before_undo: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.asynccontextmanager
    async def opened(api: Any) -> AsyncGenerator[Cluster, None]:
        yield cluster(api)

    async def deploy(api: SharedApi) -> None:
        place = cast("Any", type("Place", (), {"in_cluster": api}))
        given = ("state_size", "lease", "verify_users")
        inputs = dataclasses.replace(OURS, lease=True)
        await _deploy(place, inputs, given=given, timeout_s=None, look=cast("Any", None))

    async def run() -> Shared:
        shared = Shared(creates_before_undo=creates_before_undo)
        refused = asyncio.create_task(deploy(SharedApi(shared, is_refused=True)))
        await asyncio.sleep(0)
        accepted = asyncio.create_task(deploy(SharedApi(shared, is_refused=False)))
        accepted.add_done_callback(lambda _: shared.has_ended.set())
        with pytest.raises(ApiError, match="no room"):
            await refused
        shared.may_create.set()
        await accepted
        return shared

    monkeypatch.setattr(open_cluster, "opened", opened)
    assert asyncio.run(run()).uids.keys() == {*OBJECTS, "jobsets"}
