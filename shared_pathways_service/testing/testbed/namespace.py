"""A namespace of a testbed with its own nodes and users, all removed at its end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shared_pathways_service.testing.testbed.access_changes import wait_for_rules
from shared_pathways_service.testing.testbed.api import WAIT_S, Object
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.handle import Testbed
from shared_pathways_service.testing.testbed.node_agent.nodes import NAMESPACE_LABEL, NODE_SELECTOR
from shared_pathways_service.testing.testbed.users import User, role_objects, usual_rules

__all__ = ["Namespace", "new_namespace"]

T = TypeVar("T")


class Namespace:
    """One namespace, as the administrator sees it; created by `new_namespace`.

    Attributes:
      testbed: The testbed.
      name: Its name in Kubernetes.
      nodes: The nodes of its pods only, those without TPUs last.
    """

    def __init__(self, testbed: Testbed, name: str) -> None:
        self.testbed = testbed
        self.name = name
        self.nodes: list[str] = []
        self._users: dict[str, User] = {}

    def path(self, resource: str, name: str = "") -> str:
        """Returns the URL path of a list or an object of this namespace.

        Args:
          resource: e.g. ``pods``, ``batch/v1/jobs`` or ``jobset.x-k8s.io/v1alpha2/jobsets``.
          name: Of an object, with its subresource if need be; empty: the list.
        """
        group, _, plural = resource.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        path = f"{root}/namespaces/{self.name}/{plural}"
        return f"{path}/{name}" if name else path

    # ---- users

    def user(self, role: str, rules: Sequence[Object] | None = None) -> User:
        """Returns this namespace's user of a role; each namespace has its own users.

        Args:
          role: ``tenant`` (what `connect` needs), ``operator`` (everything), or any other word,
            for one with `rules`. The first call creates the user.
          rules: RBAC rules instead of those of the role.
        """
        if role not in self._users:
            user = self.testbed.add_user(f"{self.name}-{role}")
            wanted = usual_rules(role) if rules is None else rules
            for resource, body in role_objects(self.name, user.name, wanted).items():
                self.testbed.api.create(self.path(f"rbac.authorization.k8s.io/v1/{resource}"), body)
            wait_for_rules(self.testbed.api, self.name, user.name, wanted)
            self._users[role] = user
        return self._users[role]

    def renew_token(self, role: str) -> User:
        """Ends the token of a role's user, and returns the user with a new one."""
        old = self.user(role)
        self._users[role] = self.testbed.add_user(old.name)
        self.testbed.end_token(old)
        return self._users[role]

    def kubeconfig_of(self, role: str) -> Path:
        """Returns the kubeconfig (context ``testbed``) of this namespace's user of a role."""
        return self.testbed.kubeconfig_of(self.user(role), namespace=self.name)

    # ---- nodes

    def add_nodes(self, pools: Mapping[str, int], *, cpu_nodes: int = 1) -> list[str]:
        """Creates nodes for this namespace's pods only; returns their names.

        Args:
          pools: TPU slices by instance type, e.g. ``{"tpuv6e:2x2": 3}``; a node pool each.
          cpu_nodes: Nodes without TPUs, for heads and proxies.
        """
        prefix = f"{self.name}-" if not self.nodes else f"{self.name}-{len(self.nodes)}-"
        nodes = self.testbed.add_pools(
            pools, cpu_nodes=cpu_nodes, prefix=prefix, namespace=self.name
        )
        self.nodes += nodes
        return nodes

    def processes(self) -> dict[str, dict[str, int]]:
        """Returns the process ids on this machine of each pod's running containers, by name."""
        found: dict[str, dict[str, int]] = self.testbed.command("processes", namespace=self.name)
        return found

    # ---- objects

    def create(self, resource: str, body: Mapping[str, Any]) -> Object:
        """Creates an object in this namespace, regardless of the namespace in `body`."""
        metadata = {**body["metadata"], "namespace": self.name}
        return self.testbed.api.create(self.path(resource), {**body, "metadata": metadata})

    def items(self, resource: str, **params: str) -> list[Object]:
        """Returns the objects of a resource."""
        return self.testbed.api.items(self.path(resource), **params)

    def delete(self, resource: str, name: str, **options: Any) -> None:
        """Deletes an object."""
        self.testbed.api.delete(self.path(resource, name), **options)

    def set_quota(self, hard: Mapping[str, str]) -> None:
        """Sets a quota, e.g. ``{"count/jobs.batch": "0"}``; returns once it is enforced."""
        self.create("resourcequotas", {"metadata": {"name": "limit"}, "spec": {"hard": dict(hard)}})
        self.wait_until(
            "resourcequotas",
            lambda quotas: all(q.get("status", {}).get("hard") == dict(hard) for q in quotas),
            what="quota in force",
        )

    def log(self, pod: str, **params: str) -> str:
        """Returns a pod's log, e.g. of ``container="x"``."""
        return self.testbed.api.text(self.path("pods", f"{pod}/log"), **params)

    def wait_for_log(self, pod: str, text: str, *, timeout_s: float = WAIT_S, **params: str) -> str:
        """Waits until a line of a pod's log contains a text, and returns that line.

        Raises:
          TestbedError: The log ended without it, or the timeout expired.
        """
        for line in self.testbed.api.lines(
            self.path("pods", f"{pod}/log"), timeout_s=timeout_s, follow="true", **params
        ):
            if text in line:
                return line
        raise TestbedError(f"no {text!r} in the log of {pod} within {timeout_s:.0f} s")

    def wait_until(
        self,
        resource: str,
        condition: Callable[[Sequence[Object]], T | None],
        *,
        what: str,
        timeout_s: float = WAIT_S,
        **params: str,
    ) -> T:
        """Waits for a condition of the objects of a resource; see `Api.wait_until`."""
        return self.testbed.api.wait_until(
            self.path(resource), condition, what=what, timeout_s=timeout_s, **params
        )

    def wait_for_pod(
        self, name: str, condition: Callable[[Object], bool], *, what: str = "", **waiting: Any
    ) -> Object:
        """Waits until a pod meets a condition, and returns it."""

        def found(pods: Sequence[Object]) -> Object | None:
            return next((pod for pod in pods if condition(pod)), None)

        selector = f"metadata.name={name}"
        what = what or f"wanted state of pod {name}"
        return self.wait_until("pods", found, what=what, fieldSelector=selector, **waiting)

    # ---- what went wrong

    def diagnostics(self) -> str:
        """Returns diagnostics of a failed test, for people: nodes, Jobs, pods, logs, events."""
        lines = []
        for node in self.testbed.api.items("/api/v1/nodes"):
            if node["metadata"]["name"].startswith(self.name):
                ready = [c for c in node["status"].get("conditions", ()) if c["type"] == "Ready"]
                lines.append(
                    f"node {node['metadata']['name']}: Ready={[c['status'] for c in ready]}, "
                    f"taints {[t['key'] for t in node['spec'].get('taints', ())]}"
                )
        lines += [
            f"job {job['metadata']['name']}: {job.get('status')}"
            for job in self.items("batch/v1/jobs")
        ]
        for pod in self.items("pods"):
            name, status = pod["metadata"]["name"], pod.get("status", {})
            where = pod["spec"].get("nodeName", "no node")
            lines.append(f"pod {name} on {where}: {status.get('phase')}")
            for container in [
                *status.get("initContainerStatuses", ()),
                *status.get("containerStatuses", ()),
            ]:
                lines.append(f"  {container['name']}: {container['state']}")
                with contextlib.suppress(TestbedError):
                    text = self.log(name, container=container["name"], tailLines="30")
                    lines += [f"    {line}" for line in text.splitlines()]
        lines += [
            f"event {e['involvedObject']['name']}: {e.get('reason')}: {e.get('message')}"
            for e in self.items("events")
        ]
        return "\n".join(lines)


@contextlib.contextmanager
def new_namespace(
    testbed: Testbed,
    *,
    pools: Mapping[str, int] | None = None,
    cpu_nodes: int = 1,
    labels: Mapping[str, str] | None = None,
) -> Iterator[Namespace]:
    """Creates a namespace for the length of a block, with nodes for its pods only.

    Args:
      testbed: The testbed.
      pools: TPU slices by instance type, e.g. ``{"tpuv6e:2x2": 3}``.
      cpu_nodes: Nodes without TPUs, for heads and proxies.
      labels: Of the namespace, e.g. a pod security level.
    """
    name = f"ns-{uuid.uuid4().hex[:8]}"
    metadata = {
        "name": name,
        "labels": dict(labels or {}),
        "annotations": {NODE_SELECTOR: f"{NAMESPACE_LABEL}={name}"},
    }
    testbed.api.create("/api/v1/namespaces", {"metadata": metadata})
    with contextlib.ExitStack() as stack:
        stack.callback(_delete, testbed, name)
        namespace = Namespace(testbed, name)
        namespace.add_nodes(pools or {}, cpu_nodes=cpu_nodes)
        yield namespace


def _delete(testbed: Testbed, name: str) -> None:
    """Starts to delete a namespace, which takes a while; ends its processes at once."""
    testbed.api.delete(f"/api/v1/namespaces/{name}")
    testbed.command("remove_nodes", namespace=name)
