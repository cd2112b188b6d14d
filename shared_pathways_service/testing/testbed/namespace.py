"""A namespace of a testbed: with users of its own, and gone with all it has at the end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shared_pathways_service.testing.testbed.api import WAIT_S, Object
from shared_pathways_service.testing.testbed.handle import Testbed
from shared_pathways_service.testing.testbed.users import (
    OPERATOR_RULES,
    TENANT_RULES,
    User,
    role_objects,
)

__all__ = ["Namespace", "new_namespace"]


class Namespace:
    """One namespace, as the administrator sees it; made by `new_namespace`.

    Attributes:
      testbed: Where it is.
      name: As Kubernetes knows it.
    """

    def __init__(self, testbed: Testbed, name: str) -> None:
        self.testbed = testbed
        self.name = name
        self._users: dict[str, User] = {}

    def path(self, resource: str, name: str = "") -> str:
        """Returns the URL path of a list or an object of this namespace.

        Args:
          resource: e.g. ``pods``, ``batch/v1/jobs`` or ``jobset.x-k8s.io/v1alpha2/jobsets``.
          name: Of an object; empty: the list.
        """
        group, _, plural = resource.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        path = f"{root}/namespaces/{self.name}/{plural}"
        return f"{path}/{name}" if name else path

    def user(self, role: str, rules: Sequence[Object] | None = None) -> User:
        """Returns this namespace's user of a role, whom no other namespace knows.

        Args:
          role: ``tenant`` (what `connect` needs), ``operator`` (everything), or any other word,
            which makes a user with `rules`. The first call makes the user.
          rules: RBAC rules instead of those of the role.
        """
        if role not in self._users:
            usual = {"tenant": TENANT_RULES, "operator": OPERATOR_RULES}
            user = self.testbed.add_user(f"{self.name}-{role}")
            wanted = rules if rules is not None else usual.get(role, ())
            for resource, body in role_objects(self.name, user.name, wanted).items():
                self.testbed.api.create(self.path(f"rbac.authorization.k8s.io/v1/{resource}"), body)
            self._users[role] = user
        return self._users[role]

    def kubeconfig_of(self, role: str) -> Path:
        """Returns the kubeconfig (context ``testbed``) of this namespace's user of a role."""
        return self.testbed.kubeconfig_of(self.user(role), namespace=self.name)


@contextlib.contextmanager
def new_namespace(
    testbed: Testbed, *, labels: Mapping[str, str] | None = None
) -> Iterator[Namespace]:
    """Makes a namespace for the length of a block.

    Args:
      testbed: Where.
      labels: Of the namespace, e.g. a pod security level.
    """
    name = f"ns-{uuid.uuid4().hex[:8]}"
    testbed.api.create(
        "/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}}
    )
    with contextlib.ExitStack() as stack:
        stack.callback(_delete, testbed, name)
        yield Namespace(testbed, name)


def _delete(testbed: Testbed, name: str) -> None:
    """Deletes a namespace, and waits until all that was in it is gone."""
    testbed.api.delete(f"/api/v1/namespaces/{name}")
    testbed.api.wait_until(
        "/api/v1/namespaces",
        lambda left: not left,
        what=f"end of namespace {name}",
        timeout_s=WAIT_S,
        fieldSelector=f"metadata.name={name}",
    )
