"""Builds the volume on which the resource manager of a service keeps its state.

The claim belongs to no other object: it outlives the JobSet, which an upgrade deletes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.pod_parts import env

__all__ = [
    "DEFAULT_SIZE",
    "SECURITY",
    "claim_name",
    "read_size",
    "size_in_bytes",
    "state_claim",
    "state_mount",
    "state_variable",
    "state_volume",
]

DEFAULT_SIZE: Final = "1Gi"
#: The volume belongs to the group of our images' user, who is not root.
SECURITY: Final = {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}

_VOLUME: Final = "sps-state"
_DIRECTORY: Final = "/var/lib/shared-pathways-service"
_SIZE: Final = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>[KMGTPE]i|[kMGTPE])?")
_UNITS: Final = {
    **{unit: 1000**power for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E"))},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)},
}


def read_size(text: object, *, field: str = "--state-size") -> str:
    """Checks and returns a volume's size; ``0`` becomes an empty text: no volume.

    Raises:
      InvalidRequestError: It is not a size.
    """
    if not isinstance(text, str) or _SIZE.fullmatch(text) is None:
        raise InvalidRequestError(field, text, "a size such as 1Gi or 500M; 0: no volume")
    return text if size_in_bytes(text) else ""


def size_in_bytes(text: str) -> float:
    """Returns the bytes of a size, e.g. ``1.5Gi``; 0 for another text."""
    found = _SIZE.fullmatch(text)
    return 0 if found is None else float(found["number"]) * _UNITS[found["unit"] or ""]


def claim_name(service: str) -> str:
    """Returns the name of a service's claim."""
    return f"{service}-state"


def state_claim(
    service: str, namespace: str, *, size: str, storage_class: str, session: str = ""
) -> dict[str, Any]:
    """Returns the claim of a service's volume.

    Args:
      service: The service's name.
      namespace: Its namespace.
      size: e.g. ``1Gi``.
      storage_class: Empty: the cluster's default.
      session: A unique label, by which its creator recognizes it; empty: none.
    """
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_SERVICE: service}
    if session:
        labels[names.LABEL_SESSION] = session
    spec: dict[str, Any] = {
        # Two heads on two nodes are not to have it at the same time.
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(service), "namespace": namespace, "labels": labels},
        "spec": spec,
    }


def state_volume(service: str) -> dict[str, Any]:
    """Returns the volume in the head's pod."""
    return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim_name(service)}}


def state_mount() -> dict[str, Any]:
    """Returns the mount of the volume in the resource manager's container."""
    return {"name": _VOLUME, "mountPath": _DIRECTORY}


def state_variable() -> dict[str, Any]:
    """Returns the variable with the resource manager's state file."""
    return env("SPS_STATE_FILE", f"{_DIRECTORY}/resource_manager.sqlite3")
