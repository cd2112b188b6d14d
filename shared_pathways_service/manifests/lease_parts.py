"""Builds the Lease of a service's head, and the service account that may renew it.

The account may do nothing else: not create Leases, and not touch those of other services.
"""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.permissions import (
    account_rights,
    granting_rules,
    permissions,
)
from shared_pathways_service.manifests.pod_parts import env

__all__ = [
    "LEASE_VARIABLE",
    "account_name",
    "lease_objects",
    "lease_variable",
]

LEASE_VARIABLE: Final = "SPS_LEASE"


def account_name(service: str) -> str:
    """Returns the name of the service account of a service's head, and of its Role and Lease."""
    return f"{service}-head"


def lease_objects(service: str, namespace: str) -> dict[str, dict[str, Any]]:
    """Returns the objects of a service's Lease by resource, in the order of their creation."""
    name = account_name(service)
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE: service},
    }
    [rule] = granting_rules(permissions("coordination.k8s.io", "leases", "get", "update"))
    return {
        "leases": {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {},
        },
        "serviceaccounts": {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        **account_rights(metadata, [{**rule, "resourceNames": [name]}]),
    }


def lease_variable(service: str) -> dict[str, Any]:
    """Returns the variable that makes a resource manager hold the Lease."""
    return env(LEASE_VARIABLE, account_name(service))
