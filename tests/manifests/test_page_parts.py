"""The page of a service in its cluster: its objects, its rights, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from shared_pathways_service.cluster_state.service_reading import read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.names import LABEL_SERVICE
from shared_pathways_service.manifests.page_inputs import PageInputs, page_from_text
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import (
    page_of_service,
    service_address,
    service_jobset,
    service_objects,
)
from tests.manifests.page_proxies import IAP_IN_FRONT, OAUTH2_PROXY

OURS = "r.io/shared-pathways-service/server:1"
URL = "https://tpus.example.org/"
IAP: Mapping[str, str | None] = {"identity": "iap", "audience": "/projects/1/x", "url": URL}
OIDC: Mapping[str, str | None] = {
    "identity": "oidc",
    "audience": "$(HOME)",
    "issuer": "https://login.example.org",
    "identity-header": "X-Auth-Token",
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


def test_of_googles_services_it_may_read_what_it_shows_and_no_more() -> None:
    inputs = service({**IAP, "image": OURS}, "us-docker.pkg.dev/google/server:1")
    objects = page_of_service(inputs)
    granted = {
        (resource, verb)
        for rule in objects["roles"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {("jobsets", "list"), ("pods", "list"), ("jobs", "get"), ("jobs", "list")}
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
    words = ["--identity-header=X-Auth-Token", "--audience=$$(HOME)", f"--behind={URL}"]
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
    for text in ("{", "{}", '{"url": 1}', "[]"):
        with pytest.raises(InvalidRequestError, match=r"sps\.dev/page"):
            page_from_text(text)
