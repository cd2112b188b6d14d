"""Who may come to the testbed's API server, and what each may do there."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

from shared_pathways_service.manifests.permissions import granting_rules, needed
from shared_pathways_service.testing.testbed.api import Object

__all__ = [
    "AUDITED_GROUP",
    "User",
    "new_user",
    "role_objects",
    "usual_rules",
]

#: Members' requests stand in the audit log.
AUDITED_GROUP = "testbed:users"
ADMIN_GROUP = "system:masters"


@dataclasses.dataclass(frozen=True, kw_only=True)
class User:
    """Someone with a token.

    Attributes:
      name: As the API server knows it.
      token: Proves it.
      groups: That it belongs to.
    """

    name: str
    token: str = dataclasses.field(repr=False)
    groups: tuple[str, ...] = (AUDITED_GROUP,)


def new_user(name: str, *groups: str) -> User:
    """Makes a user up, with a token."""
    return User(name=name, token=secrets.token_hex(16), groups=groups or (AUDITED_GROUP,))


def usual_rules(role: str) -> Sequence[Object]:
    """Returns the RBAC rules of a role: ``tenant``, ``operator``; of any other word none."""
    if role == "operator":
        return ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)
    return granting_rules(needed(ours=True)) if role == "tenant" else ()


def role_objects(namespace: str, user: str, rules: Sequence[Object]) -> dict[str, Object]:
    """Returns the Role with these rules and its binding to a user, by their resource's name."""
    metadata = {"name": f"testbed-{user}", "namespace": namespace}
    group = "rbac.authorization.k8s.io"
    return {
        "roles": {
            "apiVersion": f"{group}/v1",
            "kind": "Role",
            "metadata": metadata,
            "rules": list(rules),
        },
        "rolebindings": {
            "apiVersion": f"{group}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
            "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
        },
    }
