"""The permissions that a tenant needs in a cluster, and the rules that grant them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.errors import AccessDenied

__all__ = [
    "Permission",
    "Verdict",
    "access_denied",
    "access_review",
    "account_rights",
    "evaluate",
    "granting_rules",
    "is_allowed",
    "needed",
    "needed_for_sidecar",
    "permissions",
    "rules_review",
]

_RBAC: Final = "rbac.authorization.k8s.io"
_API: Final = {"apiVersion": "authorization.k8s.io/v1"}
#: Verbs that do not apply to a single object, so that a rule with names does not grant them.
_NAMELESS: Final = ("create", "list", "watch", "deletecollection")


@dataclasses.dataclass(frozen=True, kw_only=True, order=True)
class Permission:
    """One verb on one kind of object in the namespace.

    Attributes:
      group: The API group; empty for the core.
      resource: The resource with its subresource, e.g. ``pods/log``.
      name: The object's name; empty if it is unknown or does not matter.
    """

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


def needed(*, ours: bool) -> tuple[Permission, ...]:
    """Returns the permissions that connect() needs in the namespace of the service.

    Args:
      ours: Whether the images are ours, whose proxies get a token in a Secret.
    """
    return (
        *permissions("batch", "jobs", "create", "get", "list", "watch", "patch", "delete"),
        *permissions("", "pods", "get", "list", "watch"),
        *permissions("", "pods/log", "get"),
        # From Kubernetes 1.35 on, a request over WebSocket also needs ``create``.
        *permissions("", "pods/portforward", "get", "create"),
        *permissions("", "events", "list", "watch"),
        *permissions("jobset.x-k8s.io", "jobsets", "get", "list", "watch"),
        *(permissions("", "secrets", "create") if ours else ()),
    )


def needed_for_sidecar() -> tuple[Permission, ...]:
    """Returns the permissions that a resumable link of Google's proxies needs besides."""
    return (*permissions("", "secrets", "create"), *permissions("", "configmaps", "create"))


def permissions(group: str, resource: str, *verbs: str) -> tuple[Permission, ...]:
    """Returns a permission for each of these verbs on a resource."""
    return tuple(Permission(group=group, resource=resource, verb=verb) for verb in verbs)


def rules_review(namespace: str) -> dict[str, Any]:
    """Returns the body of a request for all permissions in a namespace."""
    return {**_API, "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}


def access_review(permission: Permission, namespace: str) -> dict[str, Any]:
    """Returns the body of a request for one permission."""
    resource, _, subresource = permission.resource.partition("/")
    attributes = {
        "namespace": namespace,
        "verb": permission.verb,
        "group": permission.group,
        "resource": resource,
        "subresource": subresource,
        "name": permission.name,
    }
    attributes = {key: value for key, value in attributes.items() if value}
    return {**_API, "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}


def is_allowed(review: Mapping[str, Any]) -> bool:
    """Returns the result of an `access_review`."""
    status = review.get("status") or {}
    return bool(status.get("allowed")) and not status.get("denied")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result of a rules review for needed permissions.

    Attributes:
      unknown: Permissions to query one by one, because the review did not see all rules.
    """

    missing: tuple[Permission, ...] = ()
    unknown: tuple[Permission, ...] = ()


def evaluate(review: Mapping[str, Any], wanted: Iterable[Permission]) -> Verdict:
    """Compares the result of a `rules_review` with needed permissions."""
    status = review.get("status") or {}
    rules = status.get("resourceRules") or ()
    not_granted = tuple(p for p in wanted if not any(_grants(rule, p) for rule in rules))
    # An authorizer that cannot list its rules (a webhook) makes the list incomplete, not wrong.
    if status.get("incomplete") or status.get("evaluationError") or not status:
        return Verdict(unknown=not_granted)
    return Verdict(missing=not_granted)


def granting_rules(permissions: Iterable[Permission]) -> list[dict[str, Any]]:
    """Returns the rules of a Role that grant these permissions, one per kind of object."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for permission in permissions:
        found = verbs.setdefault((permission.group, permission.resource), [])
        if permission.verb not in found:
            found.append(permission.verb)
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": granted}
        for (group, resource), granted in verbs.items()
    ]


def access_denied(missing: Sequence[Permission], namespace: str) -> AccessDenied:
    """Returns the error for missing permissions; its fields name the first, text and rule all.

    Args:
      missing: At least one.
      namespace: Empty for resources without one.
    """
    what = ", ".join(map(str, missing))
    where = f"namespace {namespace}" if namespace else "the whole cluster"
    role = "Role" if namespace else "ClusterRole"
    return AccessDenied(
        f"you may not {what} in {where}",
        verb=missing[0].verb,
        resource=missing[0].resource,
        namespace=namespace,
        rule="\n".join(f"- {json.dumps(rule)}" for rule in granting_rules(missing)),
        hint=f"ask the cluster's administrator to grant the rules of `rule` in a {role}",
    )


def _grants(rule: Mapping[str, Any], permission: Permission) -> bool:
    names = rule.get("resourceNames") or ()
    if names and (permission.verb in _NAMELESS or permission.name not in names):
        return False
    return (
        _matches(rule.get("verbs"), permission.verb)
        and _matches(rule.get("apiGroups"), permission.group)
        and _covers(rule.get("resources") or (), permission.resource)
    )


def _matches(values: Sequence[str] | None, value: str) -> bool:
    return "*" in (values or ()) or value in (values or ())


def _covers(resources: Sequence[str], resource: str) -> bool:
    """Matches as RBAC does: ``*`` is any, ``*/log`` any log, and ``pods`` is not ``pods/log``."""
    _, slash, subresource = resource.partition("/")
    return _matches(resources, resource) or (bool(slash) and f"*/{subresource}" in resources)


def account_rights(
    metadata: Mapping[str, Any], rules: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Returns a Role and its RoleBinding to the service account of the same name, by resource.

    Args:
      metadata: The metadata of all three.
      rules: What the account may do.
    """
    name, namespace = metadata["name"], metadata["namespace"]
    return {
        "roles": {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": rules,
        },
        "rolebindings": {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    }
