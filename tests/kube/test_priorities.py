"""Priorities by the names of a real API server's PriorityClasses."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

import pytest

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.homes.kubernetes.priority_values import read_priority
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.manifests.permissions import granting_rules
from shared_pathways_service.manifests.priority_classes import READING
from tests.kube.control_plane import ControlPlane

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
RBAC = "rbac.authorization.k8s.io"


def read(plane: ControlPlane, token: str, name: str) -> int:
    config = read_kubeconfig([plane.kubeconfig({"token": token})])

    async def main() -> int:
        async with KubeApi(access_of_context(config)) as api:
            return await read_priority(api, name)

    return asyncio.run(main())


@pytest.fixture
def made(control_plane: ControlPlane) -> dict[str, int]:
    """Two classes of the cluster, and their values."""
    values = {f"urgent-{secrets.token_hex(4)}": 1234, f"idle-{secrets.token_hex(4)}": -5}
    for name, value in values.items():
        body = {"metadata": {"name": name}, "value": value}
        control_plane.call("POST", CLASSES, body)
    return values


def refused(plane: ControlPlane, token: str, kind: type[Any], name: str) -> Any:
    with pytest.raises(kind) as caught:
        read(plane, token, name)
    return caught.value


def test_a_class_has_its_value_and_an_unknown_name_is_answered_with_those_there_are(
    control_plane: ControlPlane, made: dict[str, int]
) -> None:
    for name, value in made.items():
        assert read(control_plane, control_plane.admin, name) == value
    # (The two that everybody knows need not be there.)
    for name, value in PRIORITIES.items():
        assert read(control_plane, control_plane.admin, name) == value
    error = refused(control_plane, control_plane.admin, InvalidRequestError, "pressing")
    assert (error.field, error.value) == ("priority", "pressing")
    for name in made:
        assert name in error.expected
    assert "system-" not in error.expected


def test_the_cluster_knows_better_what_the_known_names_mean(control_plane: ControlPlane) -> None:
    name = next(iter(PRIORITIES))
    control_plane.call("POST", CLASSES, {"metadata": {"name": name}, "value": 77})
    try:
        assert read(control_plane, control_plane.admin, name) == 77
        assert read(control_plane, control_plane.alice, name) == PRIORITIES[name]
    finally:
        control_plane.call("DELETE", f"{CLASSES}/{name}")


def test_without_permission_the_known_classes_are_used_with_a_note(
    control_plane: ControlPlane, made: dict[str, int]
) -> None:
    name, value = next(iter(made.items()))
    for known, number in PRIORITIES.items():
        assert read(control_plane, control_plane.alice, known) == number
    error = refused(control_plane, control_plane.alice, AccessDenied, name)
    assert (error.verb, error.resource) == ("get", "priorityclasses")
    assert name in error.message
    assert "scheduling.k8s.io" in error.rule

    # With the rules that the error proposes it is read; without the right to list, none is listed.
    role = f"reader-{secrets.token_hex(4)}"
    getting = granting_rules(READING[:1])
    root = f"/apis/{RBAC}/v1"
    control_plane.call(
        "POST", f"{root}/clusterroles", {"metadata": {"name": role}, "rules": getting}
    )
    binding = {
        "metadata": {"name": role},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "alice"}],
    }
    control_plane.call("POST", f"{root}/clusterrolebindings", binding)
    try:
        control_plane.wait_for_rules("", getting)
        assert read(control_plane, control_plane.alice, name) == value
        error = refused(control_plane, control_plane.alice, AccessDenied, "pressing")
        assert "list" in error.rule
    finally:
        control_plane.call("DELETE", f"{root}/clusterrolebindings/{role}")
