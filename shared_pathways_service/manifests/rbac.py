"""The rules of a tenant and of an operator, as objects of a cluster.

A Role holds what is done in the service's namespace, a ClusterRole what belongs to no namespace:
PriorityClasses, nodes, and the pods that a drained node has of other namespaces.
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
    """Who is given rules.

    Attributes:
      kind: ``User``, ``Group`` or ``ServiceAccount``.
      name: As the cluster knows it.
      namespace: Of a service account.
    """

    kind: str
    name: str
    namespace: str = ""

    @classmethod
    def account(cls, text: str, *, field: str) -> Subject:
        """Reads a service account as it is written, ``NAMESPACE:NAME``."""
        namespace, colon, name = text.partition(":")
        if not (namespace and colon and name) or ":" in name:
            raise InvalidRequestError(field, text, "NAMESPACE:NAME")
        return cls(kind="ServiceAccount", name=name, namespace=namespace)

    def manifest(self) -> dict[str, Any]:
        """Returns it as a binding has it."""
        if self.kind == "ServiceAccount":
            return {"kind": self.kind, "name": self.name, "namespace": self.namespace}
        return {"apiGroup": _GROUP, "kind": self.kind, "name": self.name}


#: Who is given rules where nobody is named.
TENANTS: Final = Subject(kind="Group", name="pathways-tenants")
OPERATORS: Final = Subject(kind="Group", name="pathways-operators")


def tenant_permissions() -> tuple[list[Permission], list[Permission]]:
    """Returns what connect() and a tenant's commands need: in the namespace, and outside."""
    return list(needed(ours=True)), list(READING)


def operator_permissions() -> tuple[list[Permission], list[Permission]]:
    """Returns what all commands need: in the namespace, and outside of it."""
    inside, outside = tenant_permissions()
    inside += _each(_JOBSETS, "jobsets", ("create", "patch", "delete"))
    inside += _each("", "pods", ("delete",))
    outside += _each(_PRIORITIES, "priorityclasses", ("create",))
    outside += _each("", "nodes", ("get", "list", "watch", "patch"))
    # Of a node that is drained, in whatever namespace they are.
    outside += _each("", "pods", ("list", "watch"))
    outside += _each("", "pods/eviction", ("create",))
    return inside, outside


def tenant_rbac(namespace: str, subjects: Sequence[Subject] = (TENANTS,)) -> list[dict[str, Any]]:
    """Returns the roles of a tenant, and their bindings to who is one.

    Args:
      namespace: Of the service.
      subjects: At least one.
    """
    return _objects(_TENANT, namespace, *tenant_permissions(), subjects)


def operator_rbac(
    namespace: str, subjects: Sequence[Subject] = (OPERATORS,)
) -> list[dict[str, Any]]:
    """Returns the roles of who deploys and upgrades, and their bindings.

    Args:
      namespace: Of the service.
      subjects: At least one.
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
    # Roles of the whole cluster are one for all namespaces; who has them is not.
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
