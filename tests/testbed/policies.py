"""A cluster's own rules about what may be created: admission policies and limit ranges."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from harness.deadlines import wait_until
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.errors import ApiRefused

__all__ = ["limit_range", "policy_that_denies"]

_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_PROBE = "sps-probe"


@contextlib.contextmanager
def policy_that_denies(
    namespace: Namespace, resource: str, *, says: str, reason: str = "Invalid"
) -> Iterator[str]:
    """Denies the creation of all objects of a resource, for the length of the block.

    Args:
      namespace: Where it applies.
      resource: ``jobs``, ``secrets``, ``configmaps`` or ``pods``.
      says: The policy's message.
      reason: Of the refusal: ``Invalid``, ``Forbidden``, ``Unauthorized`` or
        ``RequestEntityTooLarge``.

    Yields:
      The policy's name.
    """
    name, api = f"{namespace.name}-{resource}", namespace.testbed.api
    group = "batch" if resource == "jobs" else ""
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": says, "reason": reason}],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    with contextlib.ExitStack() as undo:
        for path, what in ((_POLICIES, spec), (_BINDINGS, binding)):
            api.create(path, {"metadata": {"name": name}, "spec": what})
            undo.callback(api.delete, f"{path}/{name}")
        wait_until("the policy to be in force", lambda: says in _refusal(namespace, resource))
        yield name


@contextlib.contextmanager
def limit_range(namespace: Namespace, *limits: dict[str, object]) -> Iterator[None]:
    """Limits the namespace's new pods, for the length of the block."""
    namespace.create("limitranges", {"metadata": {"name": "limits"}, "spec": {"limits": [*limits]}})
    try:
        # (Enforced from the next request on: the API server reads new ones itself.)
        yield
    finally:
        namespace.delete("limitranges", "limits")


def _refusal(namespace: Namespace, resource: str) -> str:
    """Returns why an object would be refused; empty if it would not be."""
    api, path = namespace.testbed.api, {"jobs": "batch/v1/jobs"}.get(resource, resource)
    container = {"name": "main", "image": "testbed/command"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    specs: dict[str, object] = {"pods": pod, "jobs": {"template": {"spec": pod}}}
    body = {"metadata": {"name": _PROBE}}
    if resource in specs:
        body["spec"] = specs[resource]  # type: ignore[assignment]
    try:
        api.request("POST", namespace.path(path), body=body, params={"dryRun": "All"})
    except ApiRefused as error:
        return str(error)
    return ""
