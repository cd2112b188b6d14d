"""Mounts the volume with a user's compiled programs in its proxy's pod.

The claim is the operator's. Proxies load what they find there, and a program that is loaded is run:
`program_policy` lets a pod mount only the folder of its verified user.
"""

from __future__ import annotations

from typing import Any, Final

__all__ = [
    "CLAIM_SUFFIX",
    "FOLDER_PREFIX",
    "PROGRAMS_GROUP",
    "has_folder",
    "programs_claim",
    "programs_flag",
    "programs_mount",
    "programs_security",
    "programs_volume",
]

CLAIM_SUFFIX: Final = "-compiled-programs"
FOLDER_PREFIX: Final = "user-"
#: The system user of proxies, and the group to which the volume belongs.
PROGRAMS_GROUP: Final = 1000

_VOLUME: Final = "sps-compiled-programs"
_DIRECTORY: Final = "/var/cache/shared-pathways-service"
#: A file's name has at most 255 bytes.
_LONGEST_FOLDER: Final = 255


def programs_claim(service: str) -> str:
    """Returns the name of the claim for the compiled programs of a service's users."""
    return f"{service}{CLAIM_SUFFIX}"


def has_folder(user: str) -> bool:
    """Whether a user has a folder: its name must not be too long."""
    return len(_folder(user).encode()) <= _LONGEST_FOLDER


def programs_volume(claim: str) -> dict[str, Any]:
    """Returns the volume of a claim in a proxy's pod."""
    return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}


def programs_mount(user: str) -> dict[str, Any]:
    """Returns the mount of a verified user's folder."""
    return {"name": _VOLUME, "mountPath": _DIRECTORY, "subPath": _folder(user)}


def programs_security() -> dict[str, Any]:
    """Returns the pod's security for the volume."""
    # Else the kubelet would open the files of all users to the group, and all would be refused.
    return {"fsGroup": PROGRAMS_GROUP, "fsGroupChangePolicy": "OnRootMismatch"}


def programs_flag() -> str:
    """Returns the flag that makes a proxy keep its programs there."""
    # The kubelet creates the folder, for the group; the proxy creates one that is its own.
    return f"--compile_cache_dir={_DIRECTORY}/compiled"


def _folder(user: str) -> str:
    return FOLDER_PREFIX + user.replace("%", "%25").replace("/", "%2F")
