"""Users who may do exactly what the rendered rules grant."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from harness.testbed.clients import home_of
from shared_pathways_service.manifests.rbac import (
    Subject,
    operator_rbac,
    tenant_rbac,
    verification_objects,
)
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.access_changes import wait_for_rules
from shared_pathways_service.testing.testbed.errors import ApiRefused

__all__ = ["create_once", "prepare_verification", "rendered_user"]

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_PLACES = {
    "Role": (_RBAC, "roles"),
    "RoleBinding": (_RBAC, "rolebindings"),
    "ClusterRole": (_RBAC, "clusterroles"),
    "ClusterRoleBinding": (_RBAC, "clusterrolebindings"),
    "ValidatingAdmissionPolicy": (_ADMISSION, "validatingadmissionpolicies"),
    "ValidatingAdmissionPolicyBinding": (_ADMISSION, "validatingadmissionpolicybindings"),
}


def rendered_user(namespace: Namespace, role: str, *, pages: bool = False) -> Mapping[str, str]:
    """Returns the variables of a user with what ``sps render ROLE-rbac`` prints, and no more.

    Args:
      namespace: The namespace of the rules.
      role: ``tenant`` or ``operator``.
      pages: Whether ``--ui`` is given, too; then it is another operator.
    """
    user = namespace.testbed.add_user(f"{namespace.name}-rendered-{role}{'-pages' * pages}")
    subjects = [Subject(kind="User", name=user.name)]
    if role == "operator":
        things = operator_rbac(namespace.name, subjects, pages=pages)
    else:
        things = tenant_rbac(namespace.name, subjects)
    if pages:
        # (Objects of both operators may be in one namespace.)
        text = json.dumps(things).replace("shared-pathways-operator", "shared-pathways-pages")
        things = json.loads(text)
    for thing in things:
        create_once(namespace, _path(namespace, thing), thing)
    for thing in things:
        if "rules" in thing:
            wait_for_rules(namespace.testbed.api, namespace.name, user.name, thing["rules"])
    return {
        "KUBECONFIG": str(namespace.testbed.kubeconfig_of(user, namespace=namespace.name)),
        "TEST_NAMESPACE": namespace.name,
        "HOME": home_of(),
    }


def prepare_verification(namespace: Namespace) -> None:
    """Creates what ``sps render user-verification`` prints."""
    for thing in verification_objects(namespace.name):
        create_once(namespace, _path(namespace, thing), thing)


def _path(namespace: Namespace, thing: Mapping[str, Any]) -> str:
    home, plural = _PLACES[thing["kind"]]
    inside = f"/namespaces/{namespace.name}" if "namespace" in thing["metadata"] else ""
    return f"{home}{inside}/{plural}"


def create_once(namespace: Namespace, path: str, body: Mapping[str, Any]) -> None:
    """Creates what is the whole cluster's, where no other namespace's test has."""
    try:
        namespace.testbed.api.create(path, body)
    except ApiRefused as error:
        if error.reason != "AlreadyExists":
            raise
