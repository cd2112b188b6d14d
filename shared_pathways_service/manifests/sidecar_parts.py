"""Builds the colocated Python sidecar of workers: user code beside the slices, in a container.

The form is that of upstream's JobSet builder (pathwaysutils 0.1.13) and PathwaysJob's controller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests.pod_parts import env

SIDECAR_CONTAINER: Final = "colocated-python-sidecar"
#: The worker's flag to use the memory that it shares with the sidecar.
MEMORY_FLAG: Final = "cloud_pathways_sidecar_shm_directory"
_PORT: Final = 50051
#: The workers' directory that is shared with the sidecar.
_SHARED_VOLUME: Final = "shared-tmp"
_SHARED_PATH: Final = "/tmp"  # noqa: S108 - the node's, as upstream has it
#: The directory in which worker and sidecar exchange arrays.
_MEMORY_VOLUME: Final = "shared-memory"
_MEMORY_PATH: Final = "/tmp/sidecar_dir"  # noqa: S108 - as upstream has it


def sidecar_container(
    image: str,
    *,
    address: str = f"0.0.0.0:{_PORT}",
    flags: Sequence[str] = (),
    variables: Sequence[Mapping[str, Any]],
    mounts: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns the init container that runs as long as its worker."""
    container: dict[str, Any] = {
        "name": SIDECAR_CONTAINER,
        "image": image,
        "imagePullPolicy": "Always",
        "env": [env("GRPC_SERVER_ADDRESS", address), *variables],
        "ports": parts.container_ports((_PORT,)),
        "volumeMounts": list(mounts),
        "restartPolicy": "Always",
    }
    if flags:
        container["args"] = list(flags)
    return container


def shared_volume() -> dict[str, Any]:
    """Returns the volume with the node's ``/tmp``, which worker and sidecar share."""
    path = {"path": _SHARED_PATH, "type": "DirectoryOrCreate"}
    return {"name": _SHARED_VOLUME, "hostPath": path}


def shared_mount() -> dict[str, str]:
    """Returns the mount of the volume in both containers."""
    return {"name": _SHARED_VOLUME, "mountPath": _SHARED_PATH}


def memory_volume() -> dict[str, Any]:
    """Returns the volume in memory by which worker and sidecar exchange arrays."""
    return {"name": _MEMORY_VOLUME, "emptyDir": {"medium": "Memory"}}


def memory_mount() -> dict[str, str]:
    """Returns the mount of the volume in both containers."""
    return {"name": _MEMORY_VOLUME, "mountPath": _MEMORY_PATH}


def memory_variable() -> dict[str, Any]:
    """Returns the variable with the directory, for both containers."""
    return env("CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY", _MEMORY_PATH)


def memory_flag() -> str:
    """Returns the worker's flag with the directory."""
    return f"--{MEMORY_FLAG}={_MEMORY_PATH}"
