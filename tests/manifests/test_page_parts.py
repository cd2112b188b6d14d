"""The page of a service in its cluster: its objects, its rights, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import types
from collections.abc import Mapping
from typing import Any, cast

import pytest

from shared_pathways_service.cli.options.service_options import ServiceOptions
from shared_pathways_service.cluster_state.service_reading import read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import target_of
from shared_pathways_service.manifests.names import ANNOTATION_PAGE, LABEL_SERVICE
from shared_pathways_service.manifests.page_inputs import PageInputs, page_from_text, page_text
from shared_pathways_service.manifests.permissions import Permission, evaluate
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import (
    page_of_service,
    service_address,
    service_jobset,
    service_objects,
)
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_readers.kubernetes.cluster_status import _read
from tests.manifests.page_proxies import IAP_IN_FRONT, OAUTH2_PROXY

OURS = "r.io/shared-pathways-service/server:1"
URL = "https://tpus.example.org/"
IAP: Mapping[str, str | None] = {"identity": "iap", "audience": "/projects/1/x", "url": URL}
OIDC: Mapping[str, str | None] = {
    "identity": "oidc",
    "audience": "$(HOME)",
    "issuer": "https://login.example.org",
    "identity-header": "X-Forwarded-Id-Token",
    "url": URL,
}


def service(given: Mapping[str, str | None] = IAP, image: str = OURS) -> ServiceInputs:
    page = PageInputs.check(dict(given))
    return ServiceInputs(
        name="pw", namespace="team-a", instances={"tpuv6e:2x2": 2}, image=image, page=page
    )


def pod_of(inputs: ServiceInputs) -> Any:
    return page_of_service(inputs)["deployments"]["spec"]["template"]["spec"]


def test_the_pod_has_no_rights_that_it_does_not_need() -> None:
    pod = pod_of(service())
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    [container] = pod["containers"]
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/healthz"
    assert {"roles", "rolebindings"}.isdisjoint(page_of_service(service()))


class Recorder:
    """Answers with a service's JobSet, and records the permissions that requests need."""

    server_time = 0.0
    access = types.SimpleNamespace(name="")

    def __init__(self, jobset: Mapping[str, Any]) -> None:
        self.jobset = jobset
        self.used: set[Permission] = set()

    async def get(self, path: str, *, params: Mapping[str, str]) -> Mapping[str, Any]:
        found = target_of("GET", path, params).permission
        self.used.add(found)
        return {"items": [self.jobset] if found.resource == "jobsets" else []}

    async def find(self, path: str) -> Mapping[str, Any]:
        self.used.add(dataclasses.replace(target_of("GET", path, {}).permission, name=""))
        return {"metadata": {"name": "x"}}


def permissions_of_a_page(inputs: ServiceInputs) -> set[Permission]:
    """Returns what the page of a service of Google's images needs: its status, and a connection."""
    jobset = service_jobset(inputs)
    metadata = {**jobset["metadata"], "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    recorder = Recorder({**jobset, "metadata": metadata})

    async def read() -> None:
        cluster = Cluster(cast("KubeApi", recorder), inputs.namespace)
        address = service_address(inputs.name)
        where = types.SimpleNamespace(namespace=inputs.namespace, pathways_service=address)
        await _read(cluster, cast("Any", where), cast("Any", None), None, lambda _: None)
        with contextlib.suppress(ServiceNotFound):
            await cluster.proxy("x")

    asyncio.run(read())
    return recorder.used


def test_of_googles_services_it_may_read_what_it_shows_and_no_more() -> None:
    inputs = service({**IAP, "image": OURS}, "us-docker.pkg.dev/google/server:1")
    objects = page_of_service(inputs)
    review = {"status": {"resourceRules": objects["roles"]["rules"], "incomplete": False}}
    wanted = permissions_of_a_page(inputs)
    assert not evaluate(review, tuple(wanted)).missing
    granted = {
        (verb, resource)
        for rule in objects["roles"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(one.verb, one.resource) for one in wanted}
    account = objects["serviceaccounts"]["metadata"]["name"]
    assert [one["name"] for one in objects["rolebindings"]["subjects"]] == [account]
    assert pod_of(inputs)["serviceAccountName"] == account
    [container] = pod_of(inputs)["containers"]
    assert container["image"] == OURS
    assert f"--pathways-service={service_address('pw')}" in container["args"]


def test_its_objects_belong_together_and_to_the_service() -> None:
    objects = page_of_service(service())
    assert {one["metadata"]["name"] for one in objects.values()} == {"pw-ui"}
    assert {one["metadata"]["labels"][LABEL_SERVICE] for one in objects.values()} == {"pw"}
    labels = objects["deployments"]["spec"]["template"]["metadata"]["labels"]
    assert objects["services"]["spec"]["selector"].items() <= labels.items()
    [port] = objects["services"]["spec"]["ports"]
    [container] = pod_of(service())["containers"]
    assert port["targetPort"] == container["ports"][0]["containerPort"]
    # `sps render` and `sps deploy --dry-run` print them, the JobSet last.
    kinds = [one["kind"] for one in service_objects(service())]
    assert kinds == ["ServiceAccount", "Service", "Deployment", "JobSet"]


@pytest.mark.parametrize("given", [IAP, OIDC])
def test_an_upgrade_finds_the_page_in_the_jobset(given: Mapping[str, str | None]) -> None:
    inputs = service(given)
    jobset = service_jobset(inputs)
    found = read_service(jobset)
    assert found is not None
    assert read_inputs(jobset, found) == inputs
    without = dataclasses.replace(inputs, page=None)
    assert service_jobset(without)["spec"] == jobset["spec"]


def test_options_are_passed_on_as_they_are() -> None:
    [container] = pod_of(service(OIDC))["containers"]
    words = ["--identity-header=X-Forwarded-Id-Token", "--audience=$$(HOME)", f"--behind={URL}"]
    assert [word for word in words if word not in container["args"]] == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"identity": None}, "--ui-identity"),
        ({"identity": "header"}, "--ui-identity"),
        ({"audience": None}, "--ui-audience"),
        ({"url": None}, "--ui-url"),
        ({"url": "tpus.example.org"}, "--ui-url"),
        ({"jwks": "/keys.json"}, "--ui-jwks"),
        ({"jwks": "http://a.example/keys"}, "--ui-jwks"),
        ({"issuer": "https://a.example"}, "--ui-issuer"),
        ({"image": "UPPER"}, "--ui-image"),
        ({"image": "r.io/other:1"}, "--ui-image"),
    ],
)
def test_wrong_options_are_refused_by_name(changed: dict[str, str | None], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        service({**IAP, **changed})
    assert refused.value.field == field


def test_a_service_of_googles_image_needs_an_image_for_its_page() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        service(IAP, "us-docker.pkg.dev/google/server:1")
    assert refused.value.field == "--ui-image"


def _fields(value: Any, name: str) -> list[Any]:
    """Returns all values of a field, however deep."""
    if isinstance(value, dict):
        own = [value[name]] if name in value else []
        return own + [found for one in value.values() for found in _fields(one, name)]
    return [found for one in value for found in _fields(one, name)] if type(value) is list else []


def test_the_proxies_of_the_documentation_lead_to_the_page() -> None:
    inputs = dataclasses.replace(service(), name="pathways")
    made = page_of_service(inputs)
    [port] = made["services"]["spec"]["ports"]
    name = made["services"]["metadata"]["name"]
    assert _fields(IAP_IN_FRONT, "backendRefs") == [[{"name": name, "port": port["port"]}]]
    assert [one["name"] for one in _fields(IAP_IN_FRONT, "targetRef")] == [name, name]
    probe = made["deployments"]["spec"]["template"]["spec"]["containers"][0]["readinessProbe"]
    assert _fields(IAP_IN_FRONT, "requestPath") == [probe["httpGet"]["path"]]
    [words] = _fields(OAUTH2_PROXY, "args")
    # (Port 80 is that of http://.)
    assert f"--upstream=http://{name}" in words
    assert port["port"] == 80
    assert {"--pass-authorization-header=true", "--pass-host-header=true"} <= set(words)


def test_an_annotation_that_was_changed_by_hand_is_named() -> None:
    assert page_from_text("") is None
    good = page_text(PageInputs.check(dict(OIDC)))
    assert page_from_text(good) == PageInputs.check(dict(OIDC))
    changed = [
        good.replace("https://login.example.org", "http://login.example.org"),
        good.replace("X-Forwarded-Id-Token", "Cookie"),
        good.replace('"oidc"', '"iap"'),
        good.replace('"https://tpus.example.org/"', "1"),
    ]
    assert good not in changed
    for text in ("{", "{}", '{"url": 1}', "[]", *changed):
        with pytest.raises(InvalidRequestError, match=r"sps\.dev/page"):
            page_from_text(text)


def test_no_ui_reads_no_annotation_that_was_changed_by_hand() -> None:
    jobset = service_jobset(service())
    jobset["metadata"]["annotations"][ANNOTATION_PAGE] = "{"
    found = read_service(jobset)
    assert found is not None
    with pytest.raises(InvalidRequestError, match=r"sps\.dev/page"):
        read_inputs(jobset, found)
    without = dataclasses.replace(service(), page=None)
    assert read_inputs(jobset, found, has_page=False) == without


def test_options_of_a_page_that_are_not_given_stay_as_they_are() -> None:
    before = PageInputs.check({**OIDC, "jwks": "https://login.example.org/keys?appid=1"})

    def after(**given: Any) -> PageInputs:
        page: PageInputs = ServiceOptions(ui=True, **given).page_field(before)["page"]
        return page

    assert after() == before
    changed = dataclasses.replace(before.identity, audience="other")
    assert after(ui_audience="other") == dataclasses.replace(before, identity=changed)
    # Another kind has other options; the address stays.
    iap = after(ui_identity="iap", ui_audience="/projects/1/x")
    assert iap == PageInputs.check(dict(IAP))
    with pytest.raises(InvalidRequestError, match="--ui-audience"):
        after(ui_identity="iap")
    assert ServiceOptions(ui=False).page_field(before) == {"page": None}
    assert ServiceOptions().page_field(before) == {}
    with pytest.raises(InvalidRequestError, match="only with --ui"):
        ServiceOptions(ui_audience="other").page_field(before)
