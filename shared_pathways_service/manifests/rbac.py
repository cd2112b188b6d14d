"""Builds the roles of tenants and operators, with their bindings.

A Role has the rules of the service's namespace, a ClusterRole those of resources without a
namespace: PriorityClasses, nodes, and pods of other namespaces on a drained node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.permissions import (
    Permission,
    granting_rules,
    needed,
    needed_for_sidecar,
    permissions,
)
from shared_pathways_service.manifests.priority_classes import READING
from shared_pathways_service.manifests.verified_users.admission_parts import POLICY_GROUP
from shared_pathways_service.manifests.verified_users.program_policy import program_policy
from shared_pathways_service.manifests.verified_users.user_policies import user_policies

__all__ = [
    "HEAD_ROLE",
    "OPERATORS",
    "TENANTS",
    "VERIFICATION",
    "Subject",
    "operator_rbac",
    "tenant_rbac",
    "verification_objects",
]

_GROUP: Final = "rbac.authorization.k8s.io"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A user, group or service account that gets roles.

    Attributes:
      kind: ``User``, ``Group`` or ``ServiceAccount``; only the last has a namespace.
    """

    kind: str
    name: str
    namespace: str = ""

    @classmethod
    def account(cls, text: str, *, field: str) -> Subject:
        """Parses a service account, ``NAMESPACE:NAME``."""
        namespace, colon, name = text.partition(":")
        if not (namespace and colon and name) or ":" in name:
            raise InvalidRequestError(field, text, "NAMESPACE:NAME")
        return cls(kind="ServiceAccount", name=name, namespace=namespace)

    def manifest(self) -> dict[str, Any]:
        """Returns the subject in the form of a binding."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": _GROUP, "kind": self.kind, "name": self.name}


#: The default groups.
TENANTS: Final = Subject(kind="Group", name="pathways-tenants")
OPERATORS: Final = Subject(kind="Group", name="pathways-operators")


def tenant_rbac(namespace: str, subjects: Sequence[Subject] = (TENANTS,)) -> list[dict[str, Any]]:
    """Returns the roles of a tenant in a service's namespace, and their bindings."""
    inside = [*needed(ours=True), *needed_for_sidecar()]
    return _objects("shared-pathways-tenant", namespace, inside, READING, subjects)


def operator_rbac(
    namespace: str, subjects: Sequence[Subject] = (OPERATORS,), *, pages: bool = False
) -> list[dict[str, Any]]:
    """Returns an operator's roles, which permit all commands, and their bindings.

    Args:
      namespace: The namespace of the services.
      subjects: Who gets the roles.
      pages: Whether they permit `sps deploy --ui`, too.
    """
    account = ("get", "create", "delete")
    inside = [
        *needed(ours=True),
        *needed_for_sidecar(),
        *permissions("jobset.x-k8s.io", "jobsets", "create", "patch", "delete"),
        *permissions("", "pods", "delete"),
        # The volume with the resource manager's state.
        *permissions("", "persistentvolumeclaims", "get", "create", "patch", "delete"),
        # The Lease of a head, and the account that may renew it. (Nobody may grant more than they
        # have themselves.)
        *permissions("coordination.k8s.io", "leases", *account, "update"),
        *permissions("", "serviceaccounts", *account),
        *permissions(_GROUP, "roles", *account),
        *permissions(_GROUP, "rolebindings", *account),
    ]
    if pages:
        inside += [
            *permissions("apps", "deployments", *account, "patch"),
            *permissions("", "services", *account, "patch"),
        ]
    outside = [
        *READING,
        *permissions("scheduling.k8s.io", "priorityclasses", "create"),
        *permissions("storage.k8s.io", "storageclasses", "list"),
        *permissions("", "nodes", "get", "list", "watch", "patch"),
        # Pods on a drained node, in any namespace.
        *permissions("", "pods", "list", "watch"),
        *permissions("", "pods/eviction", "create"),
        # Whether users can be verified.
        *permissions(POLICY_GROUP, "validatingadmissionpolicies", "get"),
        *permissions(POLICY_GROUP, "validatingadmissionpolicybindings", "get"),
    ]
    return _objects("shared-pathways-operator", namespace, inside, outside, subjects)


#: What `sps render` calls the objects for verified users.
VERIFICATION: Final = "user-verification"
#: The roles of resource managers that verify users.
HEAD_ROLE: Final = "shared-pathways-head"


def verification_objects(namespace: str) -> list[dict[str, Any]]:
    """Returns what `sps deploy --verify-users` needs in a cluster, for one namespace.

    These are the admission policies, which are the same for all namespaces, and the roles by which
    the resource managers of this one may verify tokens and read pods. One of the policies is for
    `--compiled-programs`.
    """
    # All service accounts: a pod of the namespace may use any of them.
    accounts = Subject(kind="Group", name=f"system:serviceaccounts:{namespace}")
    return [
        *user_policies(),
        *program_policy(),
        *_objects(
            HEAD_ROLE,
            namespace,
            permissions("", "pods", "get"),
            permissions("authentication.k8s.io", "tokenreviews", "create"),
            [accounts],
        ),
    ]


def _objects(
    name: str,
    namespace: str,
    inside: Iterable[Permission],
    outside: Iterable[Permission],
    subjects: Sequence[Subject],
) -> list[dict[str, Any]]:
    def role(kind: str, metadata: dict[str, str], granted: Iterable[Permission]) -> dict[str, Any]:
        return {**_object(kind, metadata), "rules": granting_rules(granted)}

    def binding(kind: str, metadata: dict[str, str]) -> dict[str, Any]:
        return {
            **_object(f"{kind}Binding", metadata),
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name},
            "subjects": [subject.manifest() for subject in subjects],
        }

    local = {"name": name, "namespace": namespace}
    # A ClusterRole is shared by all namespaces, its bindings are not.
    return [
        role("Role", local, inside),
        binding("Role", local),
        role("ClusterRole", {"name": name}, outside),
        binding("ClusterRole", {"name": f"{name}-{namespace}"}),
    ]


def _object(kind: str, metadata: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": dict(metadata)}
