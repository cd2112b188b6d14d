"""The colocated Python sidecar of workers: user code beside the slices, in a container of its own.

As PathwaysJob's controller makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.core.kubernetes import jobset_parts as parts
from shared_pathways_service.core.kubernetes.pod_parts import env

__all__ = ["SIDECAR_CONTAINER", "shared_mount", "shared_volume", "sidecar_container"]

SIDECAR_CONTAINER: Final = "colocated-python-sidecar"
_PORT: Final = 50051
#: The workers' directory that the sidecar shares.
_SHARED_VOLUME: Final = "shared-tmp"
_SHARED_PATH: Final = "/tmp"  # noqa: S108 - the node's, as the controller has it


def sidecar_container(
    image: str, *, flags: Sequence[str] = (), variables: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Returns the init container that stays as long as its worker."""
    container: dict[str, Any] = {
        "name": SIDECAR_CONTAINER,
        "image": image,
        "imagePullPolicy": "Always",
        # (The quotes are part of the value.)
        "env": [env("GRPC_SERVER_ADDRESS", f"'0.0.0.0:{_PORT}'"), *variables],
        "ports": parts.container_ports((_PORT,)),
        "volumeMounts": [shared_mount()],
        "restartPolicy": "Always",
    }
    if flags:
        container["args"] = list(flags)
    return container


def shared_volume() -> dict[str, Any]:
    """Returns the volume by which worker and sidecar share a directory."""
    return {
        "name": _SHARED_VOLUME,
        "hostPath": {"path": _SHARED_PATH, "type": "DirectoryOrCreate"},
    }


def shared_mount() -> dict[str, str]:
    """Returns where it is in both containers."""
    return {"name": _SHARED_VOLUME, "mountPath": _SHARED_PATH}
