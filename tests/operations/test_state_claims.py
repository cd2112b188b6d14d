"""Which services get a volume for their state, and what becomes of its claim."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError, SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_objects
from shared_pathways_service.manifests.state_parts import state_claim
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.state_claims import claimed, with_state

OURS = ServiceInputs(
    name="pw",
    namespace="team-a",
    instances={"tpuv6e:2x2": 2},
    image="r.io/shared-pathways-service/server:1",
)
DENIED = AccessDenied("no", verb="list", resource="storageclasses", namespace="", rule="")
DEFAULT = {"storageclass.kubernetes.io/is-default-class": "true"}


class Api:
    """The requests about claims and classes that a cluster would answer."""

    def __init__(
        self, claim: Mapping[str, Any] | None = None, classes: object | None = None
    ) -> None:
        self.claim = claim
        self.classes = classes if classes is not None else [{"metadata": {"annotations": DEFAULT}}]
        self.access = cast("Any", type("Access", (), {"name": "here"}))
        self.jobset: Mapping[str, Any] | None = None
        self.done: list[str] = []

    async def find(self, path: str) -> Mapping[str, Any] | None:
        return self.jobset if "/jobsets/" in path else self.claim

    async def get(self, _path: str) -> Mapping[str, Any]:
        if isinstance(self.classes, SharedPathwaysError):
            raise self.classes
        return {"items": self.classes}

    async def create(self, _path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.done.append("create")
        self.claim = {**body, "metadata": {**body["metadata"], "uid": "new"}}
        return self.claim

    async def patch(self, _path: str, body: Mapping[str, Any]) -> None:
        self.done.append(f"grow to {body['spec']['resources']['requests']['storage']}")

    async def delete(self, _path: str, *, uid: str) -> bool:
        self.done.append(f"delete {uid}")
        self.claim = None
        return True


def cluster(api: Api) -> Cluster:
    return Cluster(cast("KubeApi", api), "team-a")


def existing(size: str = "2Gi", **metadata: object) -> dict[str, Any]:
    claim = state_claim("pw", "team-a", size=size, storage_class="fast")
    return {**claim, "metadata": {**claim["metadata"], "uid": "old", **metadata}}


@pytest.mark.parametrize(
    ("api", "size", "why"),
    [
        (Api(), "1Gi", ""),
        (Api(classes=[]), "", "the cluster has no default StorageClass"),
        (Api(classes=[{"metadata": {}}]), "", "the cluster has no default StorageClass"),
        (Api(classes=DENIED), "", "no"),
        # That of an earlier service of this name, whatever the classes are now.
        (Api(existing(), classes=[]), "2Gi", ""),
        # The API server's form of 0.1Gi.
        (Api(existing("107374182400m")), "107374183", ""),
        (Api(existing(labels={})), "", "the PersistentVolumeClaim pw-state in namespace team-a"),
    ],
)
def test_a_new_service_has_a_volume_where_the_cluster_has_one(
    api: Api, size: str, why: str
) -> None:
    found, reason = asyncio.run(with_state(cluster(api), OURS))
    assert found == dataclasses.replace(OURS, state_size=size)
    assert reason.startswith(why)
    assert bool(reason) == bool(why)
    assert api.done == []


def test_googles_images_have_none() -> None:
    googles = ServiceInputs(name="pw", instances={"tpuv6e:2x2": 2})
    assert asyncio.run(with_state(cluster(Api()), googles)) == (googles, "")


def claim_and(api: Api, inputs: ServiceInputs, then: Callable[[], None]) -> list[str]:
    async def run() -> None:
        async with claimed(cluster(api), inputs):
            then()

    asyncio.run(run())
    return api.done


def nothing() -> None:
    pass


def test_a_claim_is_created_once_and_grows() -> None:
    assert claim_and(Api(), OURS, nothing) == []
    wanted = dataclasses.replace(OURS, state_size="2048Mi")
    assert claim_and(Api(), wanted, nothing) == ["create"]
    assert claim_and(Api(existing("2Gi")), wanted, nothing) == []
    assert claim_and(Api(existing("3Gi")), wanted, nothing) == []
    assert claim_and(Api(existing("1Gi")), wanted, nothing) == ["grow to 2048Mi"]


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (ApiError("no room", status=403), ["create", "delete new"]),
        # The service may be there, and use it.
        (ApiUnreachable("cut"), ["create"]),
    ],
)
def test_a_new_claim_goes_with_a_service_that_was_refused(
    error: SharedPathwaysError, done: list[str]
) -> None:
    def refuse() -> None:
        raise error

    api = Api()
    with pytest.raises(type(error)):
        claim_and(api, dataclasses.replace(OURS, state_size="1Gi"), refuse)
    assert api.done == done
    # Somebody else has deployed a service of this name meanwhile.
    other = Api()
    other.jobset = {"metadata": {"name": "pw"}}
    with pytest.raises(type(error)):
        claim_and(other, dataclasses.replace(OURS, state_size="1Gi"), refuse)
    assert other.done == ["create"]
    older = Api(existing())
    with pytest.raises(type(error)):
        claim_and(older, dataclasses.replace(OURS, state_size="1Gi"), refuse)
    assert older.done == []


@pytest.mark.parametrize(
    ("claim", "field"),
    [
        (existing(labels={}), "NAME"),
        (existing(deletionTimestamp="2026-01-01T00:00:00Z"), "NAME"),
        (existing(), "--storage-class"),
    ],
)
def test_a_claim_that_does_not_fit_is_refused(claim: Mapping[str, Any], field: str) -> None:
    wanted = dataclasses.replace(OURS, state_size="1Gi", storage_class="slow")
    with pytest.raises(InvalidRequestError) as caught:
        claim_and(Api(claim), wanted, nothing)
    assert caught.value.field == field


def test_the_claim_is_created_before_the_jobset_that_uses_it() -> None:
    kinds = [one["kind"] for one in service_objects(dataclasses.replace(OURS, state_size="1Gi"))]
    assert kinds == ["PersistentVolumeClaim", "JobSet"]
    assert [one["kind"] for one in service_objects(OURS)] == ["JobSet"]
