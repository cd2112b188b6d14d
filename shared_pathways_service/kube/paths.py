"""URL paths of Kubernetes objects, and the permissions that requests need."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from shared_pathways_service.manifests.permissions import Permission

__all__ = [
    "Target",
    "collection",
    "item",
    "pod_log",
    "port_forward",
    "target_of",
]

#: API group and version of each resource.
_HOMES = {
    "configmaps": "",
    "events": "",
    "namespaces": "",
    "nodes": "",
    "persistentvolumeclaims": "",
    "pods": "",
    "resourcequotas": "",
    "secrets": "",
    "serviceaccounts": "",
    "services": "",
    "deployments": "apps/v1",
    "jobs": "batch/v1",
    "leases": "coordination.k8s.io/v1",
    "jobsets": "jobset.x-k8s.io/v1alpha2",
    "priorityclasses": "scheduling.k8s.io/v1",
    "storageclasses": "storage.k8s.io/v1",
    "rolebindings": "rbac.authorization.k8s.io/v1",
    "roles": "rbac.authorization.k8s.io/v1",
    "validatingadmissionpolicies": "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicybindings": "admissionregistration.k8s.io/v1",
    "selfsubjectreviews": "authentication.k8s.io/v1",
    "tokenreviews": "authentication.k8s.io/v1",
    "selfsubjectaccessreviews": "authorization.k8s.io/v1",
    "selfsubjectrulesreviews": "authorization.k8s.io/v1",
}


def collection(resource: str, namespace: str = "") -> str:
    """Returns the path of all objects of a resource, e.g. ``jobs``, in one or all namespaces."""
    home = _HOMES[resource]
    root = f"/apis/{home}" if home else "/api/v1"
    inside = f"/namespaces/{quote(namespace, safe='')}" if namespace else ""
    return f"{root}{inside}/{resource}"


def item(resource: str, namespace: str, name: str) -> str:
    """Returns the path of one object."""
    return f"{collection(resource, namespace)}/{quote(name, safe='')}"


def pod_log(namespace: str, pod: str) -> str:
    """Returns the path of a pod's log."""
    return f"{item('pods', namespace, pod)}/log"


def port_forward(namespace: str, pod: str) -> str:
    """Returns the path of the port-forward to a pod."""
    return f"{item('pods', namespace, pod)}/portforward"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """The permission that a request needs, and its namespace, if it has one."""

    permission: Permission
    namespace: str = ""

    def __str__(self) -> str:
        name = f" {self.permission.name}" if self.permission.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.permission}{name}{where}"


_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+)(?P<subresource>/.+)?)?"
)


def target_of(method: str, path: str, params: Mapping[str, str]) -> Target:
    """Returns the target of a request.

    A WebSocket to a subresource counts as ``POST``: from Kubernetes 1.35 on the API server requires
    ``create`` for it.
    """
    match = _PATH.fullmatch(path)
    if match is None:
        # Not a resource: the path itself.
        return Target(permission=Permission(group="", resource=path, verb=method.lower()))
    found = {key: unquote(value or "") for key, value in match.groupdict().items()}
    if method in _VERBS:
        verb = _VERBS[method]
    elif method == "DELETE":
        verb = "delete" if found["name"] else "deletecollection"
    elif params.get("watch") in {"1", "true"}:
        verb = "watch"
    else:
        verb = "get" if found["name"] else "list"
    permission = Permission(
        group=found["group"],
        resource=found["resource"] + found["subresource"],
        verb=verb,
        name=found["name"],
    )
    return Target(permission=permission, namespace=found["namespace"])
