"""Whether a link can be resumable in a cluster, by its API server's answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from harness.session_requests import session_request
from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.homes.kubernetes.link_check import check_link
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.permissions import (
    Permission,
    granting_rules,
    needed_for_sidecar,
    permissions,
)
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.kube.nowhere import NowhereApi

SIDECAR = needed_for_sidecar()
PODS = permissions("", "pods", "create")
LINK = LinkInputs(keep_s=600, image="python:3.13-slim")


class Cluster(NowhereApi):
    """A cluster of a version, which may refuse pods with a sidecar, or all pods."""

    def __init__(self, minor: str = "33", *, refuses: str = "") -> None:
        super().__init__()
        self._minor = minor
        self._refuses = refuses
        self.tried: list[str] = []

    async def request(self, method: str, path: str, **how: Any) -> dict[str, Any]:
        if path == "/version":
            return {"major": "1", "minor": self._minor, "gitVersion": f"v1.{self._minor}.0"}
        assert (method, how["params"]) == ("POST", {"dryRun": "All"})
        assert path == "/api/v1/namespaces/default/pods"
        has_sidecar = "initContainers" in how["body"]["spec"]
        self.tried.append("sidecar" if has_sidecar else "plain")
        if self._refuses == "all" or (self._refuses == "sidecars" and has_sidecar):
            raise ApiError("no such image here", status=403, reason="Forbidden")
        return {}


def check(
    cluster: Cluster, *granted: Permission, link: str = "resumable", **fields: Any
) -> list[Check]:
    inputs = ServiceInputs(name="pw", instances={"tpuv6e:2x2": 1}, **fields)
    service = read_service(service_jobset(inputs))
    assert service is not None
    review: Mapping[str, Any] = {"status": {"resourceRules": granting_rules(granted)}}
    wanted = session_request(link=link, context="c")
    return asyncio.run(check_link(cluster, review, wanted, service, LINK))


def warning(cluster: Cluster, *granted: Permission) -> str:
    [found] = check(cluster, *granted)
    assert found.outcome is Outcome.WARNING
    assert 'link="plain"' in found.fix
    assert found.found.startswith("the link is not resumable: ")
    return found.found


@pytest.mark.parametrize("minor", ["29", "29+", "100", ""])
def test_a_sidecar_needs_no_more_than_two_permissions(minor: str) -> None:
    cluster = Cluster(minor)
    [found] = check(cluster, *SIDECAR)
    assert found.outcome is Outcome.OK
    assert "python:3.13-slim" in found.found
    # Without the permission to create pods there is nothing to try.
    assert cluster.tried == []


def test_a_plain_link_needs_no_check() -> None:
    assert check(Cluster(), link="plain") == []


def test_our_proxy_needs_nothing_more() -> None:
    [found] = check(Cluster("20"), image="r.io/shared-pathways-service/server:1")
    assert (found.outcome, found.found) == (Outcome.OK, "resumable, by the proxy itself")


def test_missing_permissions_are_named() -> None:
    assert "you may not create configmaps in namespace default" in warning(Cluster(), SIDECAR[0])
    assert "create secrets, create configmaps" in warning(Cluster())


@pytest.mark.parametrize("minor", ["28", "27+", "9"])
def test_an_older_cluster_has_no_native_sidecars(minor: str) -> None:
    assert f"Kubernetes 1.29, and this is v1.{minor}.0" in warning(Cluster(minor), *SIDECAR)


def test_a_policy_that_refuses_the_sidecar_is_quoted() -> None:
    cluster = Cluster(refuses="sidecars")
    assert "its sidecar is refused: no such image here" in warning(cluster, *SIDECAR, *PODS)
    assert cluster.tried == ["sidecar", "plain"]


@pytest.mark.parametrize("refuses", ["", "all"])
def test_a_refusal_of_the_proxy_itself_is_not_the_links(refuses: str) -> None:
    [found] = check(Cluster(refuses=refuses), *SIDECAR, *PODS)
    assert found.outcome is Outcome.OK
