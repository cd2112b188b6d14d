"""Which services get a volume for their state, and what becomes of its claim."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.errors import (
    AccessDenied,
    InvalidRequestError,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.command_place import CommandPlace
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.tokens import static_token
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_objects
from shared_pathways_service.manifests.state_parts import state_claim
from shared_pathways_service.operations import state_claims
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
ACCESS = ClusterAccess(
    server="http://nowhere",
    tls=None,
    tokens=static_token(),
    name="here",
    commands=CommandPlace(context="dev"),
)


class Api:
    """The requests about claims and classes that a cluster would answer."""

    def __init__(
        self, claim: Mapping[str, Any] | None = None, classes: object | None = None
    ) -> None:
        self.claim = claim
        self.classes = classes if classes is not None else [{"metadata": {"annotations": DEFAULT}}]
        self.access = ACCESS
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


class Shared:
    """A cluster in which two deploys create one service: the first is refused, the second not.

    The first one creates the claim and the second one finds it. The second one waits with its
    JobSet until `may_create` is set.

    Args:
      creates_before_delete: Whether the JobSet is created after the first deploy has looked for
        one, and before it deletes the claim.
      looks_until_end: How often a deleted claim is still seen; -1: always.
    """

    def __init__(self, *, creates_before_delete: bool = False, looks_until_end: int = 0) -> None:
        self.claim: dict[str, Any] | None = None
        self.claims_so_far = 0
        self.has_jobset = False
        self.has_found_claim = asyncio.Event()
        self.may_create = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.creates_before_delete = creates_before_delete
        self.looks_until_end = looks_until_end


class SharedApi:
    """One deploy's requests to a shared cluster."""

    def __init__(self, shared: Shared, *, is_refused: bool) -> None:
        self.shared = shared
        self.is_refused = is_refused
        self.access = ACCESS

    async def find(self, path: str) -> Mapping[str, Any] | None:
        shared = self.shared
        if "/jobsets/" in path:
            return {"kind": "JobSet"} if shared.has_jobset else None
        found = shared.claim
        if found is not None and "deletionTimestamp" in found["metadata"]:
            if shared.looks_until_end == 0:
                found = shared.claim = None
            else:
                shared.looks_until_end -= 1
        return found

    async def create(self, _path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        shared = self.shared
        if body["kind"] == "JobSet":
            if self.is_refused:
                await shared.has_found_claim.wait()
                raise ApiError("no room", status=403)
            shared.has_found_claim.set()
            await shared.may_create.wait()
            shared.has_jobset = True
            return body
        if shared.claim is not None:
            raise ApiError("it is there", status=409, reason="AlreadyExists")
        shared.claims_so_far += 1
        uid = f"claim {shared.claims_so_far}"
        shared.claim = {**body, "metadata": {**body["metadata"], "uid": uid}}
        return shared.claim

    async def delete(self, _path: str, *, uid: str) -> bool:
        shared = self.shared
        if shared.creates_before_delete:
            shared.may_create.set()
            await shared.has_ended.wait()
        assert shared.claim is not None
        assert shared.claim["metadata"]["uid"] == uid
        shared.claim["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return True


async def deploy_twice(shared: Shared) -> None:
    async def deploy(api: SharedApi) -> None:
        where = Cluster(cast("KubeApi", api), "team-a")
        async with claimed(where, dataclasses.replace(OURS, state_size="1Gi")):
            await where.api.create("jobsets", {"kind": "JobSet"})

    refused = asyncio.create_task(deploy(SharedApi(shared, is_refused=True)))
    # It has created the claim then.
    await asyncio.sleep(0)
    accepted = asyncio.create_task(deploy(SharedApi(shared, is_refused=False)))
    accepted.add_done_callback(lambda _: shared.has_ended.set())
    with pytest.raises(ApiError, match="no room"):
        await refused
    shared.may_create.set()
    await accepted


@pytest.mark.parametrize("creates_before_delete", [False, True])
@pytest.mark.parametrize("looks_until_end", [0, 3])
def test_a_service_has_its_claim_after_the_refusal_of_another_deploy(
    *, creates_before_delete: bool, looks_until_end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_claims, "_PAUSE_S", 0.0)
    shared = Shared(creates_before_delete=creates_before_delete, looks_until_end=looks_until_end)
    asyncio.run(deploy_twice(shared))
    assert shared.has_jobset
    assert shared.claim is not None
    assert shared.claim["metadata"]["uid"] == "claim 2"
    assert "deletionTimestamp" not in shared.claim["metadata"]


def test_a_claim_that_was_deleted_and_does_not_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_claims, "_PAUSE_S", 0.0)
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    said = "another command has deleted its claim pw-state"
    with pytest.raises(ServiceNotReady, match=said) as caught:
        asyncio.run(deploy_twice(Shared(looks_until_end=-1)))
    assert "`sps undeploy pw --context=dev --namespace=team-a`" in caught.value.hint
