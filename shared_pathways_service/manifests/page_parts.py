"""Builds the page of a service in its cluster: a Deployment, its Service, and its account.

With our images the page reads the resource manager alone, and its pod has no access to the API
server. Of a service of Google's images it reads JobSets, pods and Jobs, and may read nothing else.
"""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.image_names import is_ours
from shared_pathways_service.manifests.page_inputs import PageInputs
from shared_pathways_service.manifests.permissions import (
    account_rights,
    granting_rules,
    permissions,
)
from shared_pathways_service.manifests.pod_parts import env, literal, restricted

__all__ = ["PAGE_PORT", "page_name", "page_objects"]

#: The port in the pod; that of the Service is 80.
PAGE_PORT: Final = 8080
_PORT_NAME: Final = "http"
#: A path that answers without an identity, as probes have none; `web.page_server` serves it.
_HEALTH: Final = {"path": "/healthz", "port": PAGE_PORT}
#: Idle it has 90 MiB.
_RESOURCES: Final = {
    "requests": {"cpu": "50m", "memory": "192Mi"},
    "limits": {"memory": "512Mi"},
}
#: The user of our images.
_USER: Final = 1000
_SCRATCH: Final = "scratch"
_SCRATCH_DIRECTORY: Final = "/tmp"  # noqa: S108 - a volume of the pod's own


def page_name(service: str) -> str:
    """Returns the name of all objects of a service's page."""
    return f"{service}-ui"


def page_objects(
    service: str, namespace: str, page: PageInputs, *, image: str, address: str
) -> dict[str, dict[str, Any]]:
    """Returns the objects of a page by resource, in the order of their creation.

    Args:
      service: The service's name.
      namespace: Its namespace.
      page: The page's inputs.
      image: The service's image.
      address: ``host:port`` of its resource manager.

    Raises:
      InvalidRequestError: The page has no image of ours.
    """
    name = page_name(service)
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE: service},
    }
    objects: dict[str, dict[str, Any]] = {
        "serviceaccounts": {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata,
            "automountServiceAccountToken": False,
        }
    }
    if not is_ours(image):
        objects |= _rights(metadata)
    selector = {names.LABEL_APP: name}
    objects["services"] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "selector": selector,
            "ports": [{"name": _PORT_NAME, "port": 80, "targetPort": PAGE_PORT}],
        },
    }
    template = {
        "metadata": {"labels": {**metadata["labels"], **selector}},
        "spec": _pod(name, namespace, page, image=image, address=address),
    }
    objects["deployments"] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"replicas": 1, "selector": {"matchLabels": selector}, "template": template},
    }
    return objects


def _rights(metadata: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the right to read what shows a service of Google's images."""
    rules = granting_rules(
        (
            *permissions("jobset.x-k8s.io", "jobsets", "list"),
            *permissions("", "pods", "list"),
            *permissions("batch", "jobs", "get", "list"),
        )
    )
    return account_rights(metadata, rules)


def _pod(
    name: str, namespace: str, page: PageInputs, *, image: str, address: str
) -> dict[str, Any]:
    where = (
        [f"--manager={address}"]
        if is_ours(image)
        else [f"--namespace={namespace}", f"--pathways-service={address}"]
    )
    words = [
        "ui",
        f"--port={PAGE_PORT}",
        f"--behind={page.url}",
        *page.identity.options(),
        *where,
    ]
    container = {
        "name": "ui",
        "image": page.image_for(image),
        "command": ["python3", "-P", "-m", "shared_pathways_service.cli"],
        "args": [*map(literal, words)],
        "env": [
            env("SPS_BIND_ADDRESS", "0.0.0.0"),  # noqa: S104 - a pod's own
            env("HOME", _SCRATCH_DIRECTORY),
        ],
        "ports": [{"name": _PORT_NAME, "containerPort": PAGE_PORT, "protocol": "TCP"}],
        # (Python and its packages take seconds to start on a busy node.)
        "startupProbe": {"httpGet": _HEALTH, "periodSeconds": 1, "failureThreshold": 60},
        "readinessProbe": {"httpGet": _HEALTH},
        "livenessProbe": {"httpGet": _HEALTH, "timeoutSeconds": 5, "failureThreshold": 6},
        "resources": _RESOURCES,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {**restricted(), "readOnlyRootFilesystem": True},
        "volumeMounts": [{"name": _SCRATCH, "mountPath": _SCRATCH_DIRECTORY}],
    }
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": not is_ours(image),
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [{"name": _SCRATCH, "emptyDir": {"sizeLimit": "64Mi"}}],
    }
