"""Builds the volume with a proxy's token, which the containers of its pod mount."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["TOKEN_FILE", "TOKEN_KEY", "token_mount", "token_volume"]

#: The Secret's key, which is also the file's name.
TOKEN_KEY: Final = "token"  # noqa: S105 - a name
_VOLUME: Final = "sps-token"
_DIRECTORY: Final = "/var/run/secrets/sps.dev"
#: The file with the token in a container.
TOKEN_FILE: Final = f"{_DIRECTORY}/{TOKEN_KEY}"


def token_volume(secret: str) -> dict[str, Any]:
    """Returns the volume of a Secret of this name.

    It is readable by its owner only; the kubelet adds the group of `fsGroup`, which is that of the
    containers.
    """
    return {"name": _VOLUME, "secret": {"secretName": secret, "defaultMode": 0o400}}


def token_mount() -> dict[str, Any]:
    """Returns the mount of the volume in a container."""
    return {"name": _VOLUME, "mountPath": _DIRECTORY, "readOnly": True}
