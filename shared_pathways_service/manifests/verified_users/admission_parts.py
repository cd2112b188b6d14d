"""Builds an admission policy of a cluster, with its binding.

Source: "Validating Admission Policy" of the Kubernetes documentation, stable since 1.30.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service.manifests.names import LABEL_MANAGED_BY, MANAGED_BY

__all__ = ["POLICY_GROUP", "policy_with_binding"]

POLICY_GROUP: Final = "admissionregistration.k8s.io"
_VERSION: Final = f"{POLICY_GROUP}/v1"


def policy_with_binding(
    name: str, group: str, resources: list[str], spec: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns a policy for all namespaces, and its binding of the same name.

    Args:
      name: Their name.
      group: The API group of the resources.
      resources: The resources that are checked when they are created or changed.
      spec: Further fields of the policy's specification.
    """
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": resources,
    }
    metadata = {"name": name, "labels": {LABEL_MANAGED_BY: MANAGED_BY}}
    policy = {
        "apiVersion": _VERSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule]},
            **spec,
        },
    }
    binding = {
        "apiVersion": _VERSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata,
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    return [policy, binding]
