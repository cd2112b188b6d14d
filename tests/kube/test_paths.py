"""Paths, and what a request for one asks permission for."""

from __future__ import annotations

import pytest

from shared_pathways_service.kube import paths
from shared_pathways_service.manifests.permissions import Permission, needed


@pytest.mark.parametrize(
    ("method", "path", "params", "permission", "namespace"),
    [
        ("GET", paths.collection("pods", "ns"), {}, ("", "pods", "list", ""), "ns"),
        ("GET", paths.collection("pods", "ns"), {"watch": "true"}, ("", "pods", "watch", ""), "ns"),
        ("GET", paths.collection("nodes"), {}, ("", "nodes", "list", ""), ""),
        ("GET", paths.item("jobs", "ns", "j"), {}, ("batch", "jobs", "get", "j"), "ns"),
        ("POST", paths.collection("jobs", "ns"), {}, ("batch", "jobs", "create", ""), "ns"),
        ("DELETE", paths.item("jobs", "ns", "j"), {}, ("batch", "jobs", "delete", "j"), "ns"),
        ("GET", paths.pod_log("ns", "p"), {}, ("", "pods/log", "get", "p"), "ns"),
        ("POST", paths.port_forward("ns", "p"), {}, ("", "pods/portforward", "create", "p"), "ns"),
        (
            "GET",
            paths.collection("jobsets", "ns"),
            {},
            ("jobset.x-k8s.io", "jobsets", "list", ""),
            "ns",
        ),
        ("GET", "/version", {}, ("", "/version", "get", ""), ""),
    ],
)
def test_permission_of_a_request(
    method: str,
    path: str,
    params: dict[str, str],
    permission: tuple[str, str, str, str],
    namespace: str,
) -> None:
    group, resource, verb, name = permission
    target = paths.target_of(method, path, params)
    assert target.permission == Permission(group=group, resource=resource, verb=verb, name=name)
    assert target.namespace == namespace


def test_every_resource_that_a_tenant_needs_has_a_path() -> None:
    for permission in needed(ours=True):
        resource = permission.resource.partition("/")[0]
        target = paths.target_of("GET", paths.collection(resource, "ns"), {})
        assert target.permission.group == permission.group


def test_names_cannot_leave_their_place() -> None:
    path = paths.item("secrets", "a/b", "../c")
    assert path == "/api/v1/namespaces/a%2Fb/secrets/..%2Fc"
    target = paths.target_of("GET", path, {})
    assert (target.namespace, target.permission.name) == ("a/b", "../c")
