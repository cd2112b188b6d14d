"""A Shared Pathways Service on the testbed: its JobSet, and pods that run our own servers."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.manifests.names import (
    HEAD_JOB,
    LABEL_JOBSET,
    LABEL_REPLICATED_JOB,
    RM_CONTAINER,
)
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_objects
from shared_pathways_service.testing.testbed.api import WAIT_S, Object
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.namespace import Namespace
from shared_pathways_service.version import __version__

__all__ = ["OUR_PROXY_IMAGE", "OUR_SERVER_IMAGE", "DeployedService", "deploy_service"]

OUR_SERVER_IMAGE = f"shared-pathways-service/server:{__version__}"
OUR_PROXY_IMAGE = f"shared-pathways-service/proxy_server:{__version__}"

_JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
_READY = re.compile(r"(\d+)/(\d+) Pathways Slices Now Ready")


@dataclasses.dataclass(frozen=True)
class DeployedService:
    """A service's JobSet.

    Attributes:
      namespace: Its namespace.
      name: The JobSet's name.
    """

    namespace: Namespace
    name: str

    @property
    def address(self) -> str:
        """The argument of `connect(pathways_service=…)`."""
        return service_address(self.name)

    def pods(self, job: str = "") -> list[Object]:
        """Returns its pods that are not being deleted.

        Args:
          job: Only those of a replicated job, e.g. ``pathways-head`` or ``worker``.
        """
        selector = f"{LABEL_JOBSET}={self.name}"
        if job:
            selector += f",{LABEL_REPLICATED_JOB}={job}"
        found = self.namespace.items("pods", labelSelector=selector)
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    @property
    def head(self) -> Object:
        """The head's pod."""
        return self.wait_for_head()

    def wait_for_head(self, *, other_than: str = "") -> Object:
        """Waits until the head's pod is ready, and returns it; `other_than` is a pod's uid."""

        def found(pods: Sequence[Object]) -> Object | None:
            return next(
                (p for p in pods if _is_ready(p) and p["metadata"]["uid"] != other_than), None
            )

        selector = f"{LABEL_JOBSET}={self.name},{LABEL_REPLICATED_JOB}={HEAD_JOB}"
        return self.namespace.wait_until(
            "pods", found, what=f"ready head of {self.name}", labelSelector=selector
        )

    def wait_until_ready(self, *, timeout_s: float = WAIT_S) -> None:
        """Waits until all pods are ready, and the resource manager has logged that all slices are.

        Raises:
          TestbedError: They are not ready in time; the error describes the state.
        """
        deadline = time.monotonic() + timeout_s
        while not self._all_ready(self.log()):
            if time.monotonic() > deadline:
                raise TestbedError(
                    f"service {self.name} is not ready after {timeout_s:.0f} s",
                    hint=self.namespace.diagnostics(),
                )
            time.sleep(0.1)
        # A worker registers before its pod's status is ``Running``.
        self.namespace.wait_until(
            "pods",
            lambda pods: all(map(_is_ready, pods)) or None,
            what=f"ready pods of {self.name}",
            timeout_s=max(1.0, deadline - time.monotonic()),
            labelSelector=f"{LABEL_JOBSET}={self.name}",
        )

    def log(self) -> str:
        """Returns the resource manager's log."""
        return self.namespace.log(self.head["metadata"]["name"], container=RM_CONTAINER)

    def delete(self) -> None:
        """Deletes the JobSet, and waits until its pods are gone."""
        self.namespace.delete(_JOBSETS, self.name)
        self.namespace.wait_until(
            "pods",
            lambda left: not left,
            what=f"end of the pods of {self.name}",
            labelSelector=f"{LABEL_JOBSET}={self.name}",
        )

    @staticmethod
    def _all_ready(log: str) -> bool:
        counts = _READY.findall(log)
        return bool(counts) and counts[-1][0] == counts[-1][1]


def deploy_service(
    namespace: Namespace,
    instances: Mapping[str, int],
    *,
    name: str = "pathways",
    image: str = OUR_SERVER_IMAGE,
    ready: bool = True,
    **inputs: Any,
) -> DeployedService:
    """Creates a service's objects; its namespace must have nodes for it.

    Args:
      namespace: The namespace.
      instances: Slices by instance type, e.g. ``{"tpuv6e:2x2": 2}``.
      name: The JobSet's name.
      image: Of resource manager and workers: ours, or Google's, which runs ours without extensions.
      ready: Whether to wait until all slices are ready.
      **inputs: Further fields of `ServiceInputs`.
    """
    wanted = ServiceInputs(
        name=name, namespace=namespace.name, instances=instances, image=image, **inputs
    )
    *claims, jobset = service_objects(wanted)
    for claim in claims:
        namespace.create("persistentvolumeclaims", claim)
    namespace.create(_JOBSETS, jobset)
    service = DeployedService(namespace, name)
    if ready:
        service.wait_until_ready()
    return service


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]
