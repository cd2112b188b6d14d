"""The page of a service in its cluster: when it is created, changed and deleted, and by what."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.cli.commands.clusters.deploy import _deploy
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import target_of
from shared_pathways_service.manifests.names import ANNOTATION_PAGE, LABEL_SERVICE
from shared_pathways_service.manifests.page_inputs import PageInputs
from shared_pathways_service.manifests.permissions import evaluate
from shared_pathways_service.manifests.rbac import operator_rbac
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_pages import change_page, delete_page
from shared_pathways_service.operations.service_readers.kubernetes import open_cluster

OURS = "r.io/shared-pathways-service/server:1"
GOOGLES = "us-docker.pkg.dev/google/server:1"
Key = tuple[str, str]


def inputs(audience: str = "", image: str = OURS, name: str = "pw") -> ServiceInputs:
    """Inputs of a service; with an audience it has a page."""
    given = {"identity": "iap", "audience": audience, "url": "https://a.example/", "image": OURS}
    page = PageInputs.check(dict[str, str | None](given)) if audience else None
    slices = {"tpuv6e:2x2": 1}
    return ServiceInputs(name=name, namespace="a", instances=slices, image=image, page=page)


class Api:
    """A cluster's objects, and the requests for them; `denied` are verbs on resources."""

    access = type("Access", (), {"name": "", "commands": None})

    def __init__(self) -> None:
        self.objects: dict[Key, dict[str, Any]] = {}
        self.denied: set[tuple[str, str]] = set()
        self.used: list[Any] = []
        self.uids = 0

    def allow(self, method: str, path: str) -> Key:
        permission = target_of(method, path, {}).permission
        self.used.append(permission)
        if (permission.verb, permission.resource) in self.denied:
            raise AccessDenied(
                f"no {permission}",
                verb=permission.verb,
                resource=permission.resource,
                namespace="a",
                rule="",
            )
        return permission.resource, permission.name

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any],
        params: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        resource, _ = self.allow(method, path)
        key = resource, str(body["metadata"]["name"])
        if key in self.objects:
            raise ApiError("it is there", status=409, reason="AlreadyExists")
        self.uids += 1
        made = {**body, "metadata": {**body["metadata"], "uid": str(self.uids)}}
        if not params:
            self.objects[key] = made
        return made

    async def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self.request("POST", path, body=body)

    async def find(self, path: str) -> Mapping[str, Any] | None:
        return self.objects.get(self.allow("GET", path))

    async def delete(self, path: str, *, uid: str) -> bool:
        assert self.objects.pop(self.allow("DELETE", path))["metadata"]["uid"] == uid
        return True

    async def patch(self, path: str, body: Mapping[str, Any]) -> None:
        found = self.objects[self.allow("PATCH", path)]
        metadata = {**found["metadata"], **body["metadata"]}
        given = {**(found["metadata"].get("annotations") or {}), **metadata["annotations"]}
        metadata["annotations"] = {name: one for name, one in given.items() if one is not None}
        found.update({**body, "metadata": metadata})

    def page(self, name: str = "pw-ui") -> dict[str, dict[str, Any]]:
        return {kind: one for (kind, found), one in self.objects.items() if found == name}


def cluster(api: Api) -> Cluster:
    return Cluster(cast("KubeApi", api), "a")


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    @contextlib.asynccontextmanager
    async def opened(found: Any) -> AsyncGenerator[Cluster, None]:
        yield cluster(found)

    monkeypatch.setattr(open_cluster, "opened", opened)
    monkeypatch.setattr(Cluster, "sps", lambda _self, *words, **_: " ".join(("sps", *words)))
    return Api()


def deploy(api: Api, wanted: ServiceInputs) -> None:
    place = cast("Any", type("Place", (), {"in_cluster": api}))
    given = ("state_size", "lease", "verify_users")
    asyncio.run(_deploy(place, wanted, given=given, timeout_s=None, look=cast("Any", None)))


def change(api: Api, wanted: ServiceInputs) -> bool:
    jobset = api.objects["jobsets", "pw"]
    return asyncio.run(change_page(cluster(api), jobset, wanted))


@pytest.mark.parametrize("first", ["", "one"])
def test_a_refused_deploy_leaves_the_page_of_the_service_that_is_there(
    first: str, api: Api
) -> None:
    deploy(api, inputs(first))
    before = {key: dict(one) for key, one in api.objects.items()}
    with pytest.raises(InvalidRequestError, match="already exists"):
        deploy(api, inputs("two"))
    assert api.objects == before


def test_a_page_of_a_service_that_is_gone_becomes_the_new_ones(api: Api) -> None:
    deploy(api, inputs("one"))
    del api.objects["jobsets", "pw"]
    deploy(api, inputs("two"))
    [container] = api.page()["deployments"]["spec"]["template"]["spec"]["containers"]
    assert "--audience=two" in container["args"]


def test_an_operator_without_the_rights_gets_no_service(api: Api) -> None:
    api.denied = {("create", "deployments")}
    with pytest.raises(AccessDenied, match="create deployments"):
        deploy(api, inputs("one"))
    assert api.objects == {}


def test_a_page_that_is_created_in_part_is_completed_by_an_upgrade(
    api: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = api.request

    async def failing(method: str, path: str, **more: Any) -> Mapping[str, Any]:
        if "deployments" in path and not more.get("params"):
            raise ApiError("no quota", status=403)
        return await request(method, path, **more)

    with monkeypatch.context() as patched:
        patched.setattr(api, "request", failing)
        with pytest.raises(ApiError, match="no quota"):
            deploy(api, inputs("one"))
    assert "`sps upgrade pw` creates that" in capsys.readouterr().err
    assert set(api.page()) == {"serviceaccounts", "services"}
    assert change(api, inputs("one"))
    assert "deployments" in api.page()
    assert not change(api, inputs("one"))


def test_objects_of_others_under_the_pages_name_are_refused(api: Api) -> None:
    theirs = {"metadata": {"name": "pw-ui", "uid": "0", "labels": {LABEL_SERVICE: "other"}}}
    api.objects["services", "pw-ui"] = theirs
    with pytest.raises(InvalidRequestError, match="Service pw-ui"):
        deploy(api, inputs("one"))
    assert api.objects == {("services", "pw-ui"): theirs}


@pytest.mark.parametrize(("first", "second"), [("pw", "pw-ui"), ("pw-ui", "pw")])
def test_a_service_and_a_page_of_one_name_are_refused(first: str, second: str, api: Api) -> None:
    deploy(api, inputs("one", name=first))
    before = dict(api.objects)
    with pytest.raises(InvalidRequestError, match="another name"):
        deploy(api, inputs("one", name=second))
    assert api.objects == before
    # Without a page they are two services.
    del api.objects["jobsets", first]["metadata"]["annotations"][ANNOTATION_PAGE]
    deploy(api, inputs(name=second))


def test_a_page_is_changed_and_deleted_with_its_record(api: Api) -> None:
    deploy(api, inputs("one"))
    assert change(api, inputs("two"))
    assert "two" in api.objects["jobsets", "pw"]["metadata"]["annotations"][ANNOTATION_PAGE]
    # Without the right to delete all of it, the JobSet goes on telling that there is a page.
    api.denied = {("delete", "services")}
    with pytest.raises(AccessDenied, match="services pw-ui: no delete services"):
        change(api, inputs())
    assert set(api.page()) == {"services"}
    assert ANNOTATION_PAGE in api.objects["jobsets", "pw"]["metadata"]["annotations"]
    api.denied.clear()
    assert change(api, inputs())
    assert api.page() == {}
    assert ANNOTATION_PAGE not in api.objects["jobsets", "pw"]["metadata"]["annotations"]
    # Then nothing of a page is looked for.
    api.used.clear()
    assert not change(api, inputs())
    assert api.used == []


@pytest.mark.parametrize("image", [OURS, GOOGLES])
def test_the_rights_on_request_are_those_that_a_page_needs(image: str, api: Api) -> None:
    deploy(api, inputs("one", image))
    for one in api.page().values():
        one["metadata"]["annotations"] = {}
    change(api, inputs("two", image))
    asyncio.run(delete_page(cluster(api), "pw"))
    needed = tuple({dataclasses.replace(one, name="") for one in api.used})

    def missing(*, pages: bool) -> set[Key]:
        role, *_ = operator_rbac("a", pages=pages)
        review = {"status": {"resourceRules": role["rules"], "incomplete": False}}
        return {(one.verb, one.resource) for one in evaluate(review, needed).missing}

    assert missing(pages=True) == set()
    assert missing(pages=False) == {
        (verb, resource)
        for verb in ("get", "create", "patch", "delete")
        for resource in ("deployments", "services")
    }
