"""Builds the roles of tenants and operators, with their bindings.

A Role has the rules of the service's namespace, a ClusterRole those of resources without a
namespace: PriorityClasses, nodes, and pods of other namespaces on a drained node.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Final

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests.permissions import Permission, granting_rules, needed
from shared_pathways_service.manifests.priority_classes import READING

__all__ = [
    "OPERATORS",
    "TENANTS",
    "Subject",
    "operator_permissions",
    "operator_rbac",
    "tenant_permissions",
    "tenant_rbac",
]

_GROUP: Final = "rbac.authorization.k8s.io"
_VERSION: Final = f"{_GROUP}/v1"
_JOBSETS: Final = "jobset.x-k8s.io"
_PRIORITIES: Final = "scheduling.k8s.io"
_TENANT: Final = "shared-pathways-tenant"
_OPERATOR: Final = "shared-pathways-operator"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Subject:
    """A user, group or service account that gets roles.

    Attributes:
      kind: ``User``, ``Group`` or ``ServiceAccount``.
      name: The name in the cluster.
      namespace: The namespace of a service account.
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


def tenant_permissions() -> tuple[list[Permission], list[Permission]]:
    """Returns a tenant's permissions, inside and outside of the namespace."""
    return list(needed(ours=True)), list(READING)


def operator_permissions() -> tuple[list[Permission], list[Permission]]:
    """Returns the permissions of all commands, inside and outside of the namespace."""
    inside, outside = tenant_permissions()
    inside += _each(_JOBSETS, "jobsets", ("create", "patch", "delete"))
    inside += _each("", "pods", ("delete",))
    outside += _each(_PRIORITIES, "priorityclasses", ("create",))
    outside += _each("", "nodes", ("get", "list", "watch", "patch"))
    # Pods on a drained node, in any namespace.
    outside += _each("", "pods", ("list", "watch"))
    outside += _each("", "pods/eviction", ("create",))
    return inside, outside


def tenant_rbac(namespace: str, subjects: Sequence[Subject] = (TENANTS,)) -> list[dict[str, Any]]:
    """Returns the roles of a tenant, and their bindings.

    Args:
      namespace: The namespace of the service.
      subjects: At least one subject.
    """
    return _objects(_TENANT, namespace, *tenant_permissions(), subjects)


def operator_rbac(
    namespace: str, subjects: Sequence[Subject] = (OPERATORS,)
) -> list[dict[str, Any]]:
    """Returns the roles of an operator, and their bindings.

    Args:
      namespace: The namespace of the service.
      subjects: At least one subject.
    """
    return _objects(_OPERATOR, namespace, *operator_permissions(), subjects)


def _each(group: str, resource: str, verbs: Iterable[str]) -> list[Permission]:
    return [Permission(group=group, resource=resource, verb=verb) for verb in verbs]


def _objects(
    name: str,
    namespace: str,
    inside: Iterable[Permission],
    outside: Iterable[Permission],
    subjects: Sequence[Subject],
) -> list[dict[str, Any]]:
    local = {"name": name, "namespace": namespace}
    # A ClusterRole is shared by all namespaces, its bindings are not.
    wide, binding = {"name": name}, {"name": f"{name}-{namespace}"}
    who = [subject.manifest() for subject in subjects]
    return [
        _role("Role", local, granting_rules(inside)),
        _binding("RoleBinding", local, "Role", name, who),
        _role("ClusterRole", wide, granting_rules(outside)),
        _binding("ClusterRoleBinding", binding, "ClusterRole", name, who),
    ]


def _role(kind: str, metadata: dict[str, str], rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"apiVersion": _VERSION, "kind": kind, "metadata": dict(metadata), "rules": rules}


def _binding(
    kind: str, metadata: dict[str, str], role_kind: str, role: str, subjects: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "apiVersion": _VERSION,
        "kind": kind,
        "metadata": dict(metadata),
        "roleRef": {"apiGroup": _GROUP, "kind": role_kind, "name": role},
        "subjects": [dict(subject) for subject in subjects],
    }
