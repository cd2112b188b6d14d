"""Users of the testbed's API server, and the permissions of their roles."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

from shared_pathways_service.manifests.permissions import (
    granting_rules,
    needed,
    needed_for_sidecar,
)
from shared_pathways_service.testing.testbed.api import Object

__all__ = ["ADMIN_GROUP", "AUDITED_GROUP", "User", "new_user", "role_objects", "usual_rules"]

#: The group of users whose requests are audited.
AUDITED_GROUP = "testbed:users"
ADMIN_GROUP = "system:masters"


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    """A user of the API server, with a bearer token."""

    name: str
    token: str = dataclasses.field(repr=False)
    groups: tuple[str, ...] = (AUDITED_GROUP,)


def new_user(name: str, *groups: str) -> User:
    """Creates a user with a new token."""
    return User(name=name, token=secrets.token_hex(16), groups=groups or (AUDITED_GROUP,))


def usual_rules(role: str) -> Sequence[Object]:
    """Returns the RBAC rules of a role: ``tenant`` or ``operator``; none for other names."""
    if role == "operator":
        return ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)
    tenants = (*needed(ours=True), *needed_for_sidecar())
    return granting_rules(tenants) if role == "tenant" else ()


def role_objects(namespace: str, user: str, rules: Sequence[Object]) -> dict[str, Object]:
    """Returns the Role with these rules and its binding to a user, by resource."""
    metadata = {"name": f"testbed-{user}", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    common = {"apiVersion": f"{group}/v1", "metadata": metadata}
    return {
        "roles": {**common, "kind": "Role", "rules": list(rules)},
        "rolebindings": {
            **common,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    }
