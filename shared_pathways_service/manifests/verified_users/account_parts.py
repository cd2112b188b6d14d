"""Builds the volumes with tokens of service accounts, which the kubelet issues for one pod each."""

from __future__ import annotations

from typing import Any, Final

from shared_pathways_service.manifests.pod_parts import env

__all__ = [
    "account_mount",
    "account_variable",
    "account_volume",
    "identity_mount",
    "identity_variable",
    "identity_volume",
]

_ACCOUNT: Final = "sps-account"
_ACCOUNT_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_IDENTITY: Final = "sps-identity"
_IDENTITY_DIRECTORY: Final = "/var/run/secrets/sps.dev/identity"
_TOKEN: Final = "token"  # noqa: S105 - a file's name
#: Seconds for which a token is valid; the kubelet replaces it before.
_TOKEN_S: Final = 3600
#: The ConfigMap with the API server's authority, in each namespace.
_AUTHORITY: Final = "kube-root-ca.crt"


def account_volume() -> dict[str, Any]:
    """Returns the volume with access to the API server, by the pod's service account.

    The kubelet adds such a volume to all containers by itself; this one is only for those that
    mount it.
    """
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    authority = {"key": "ca.crt", "path": "ca.crt"}
    return {
        "name": _ACCOUNT,
        "projected": {
            "sources": [
                {"serviceAccountToken": {"path": _TOKEN, "expirationSeconds": _TOKEN_S}},
                {"configMap": {"name": _AUTHORITY, "items": [authority]}},
                {"downwardAPI": {"items": [namespace]}},
            ]
        },
    }


def account_mount() -> dict[str, Any]:
    """Returns the mount of that volume in a container."""
    return {"name": _ACCOUNT, "mountPath": _ACCOUNT_DIRECTORY, "readOnly": True}


def account_variable() -> dict[str, Any]:
    """Returns the variable that names its directory to a resource manager."""
    return env("SPS_SERVICE_ACCOUNT_DIRECTORY", _ACCOUNT_DIRECTORY)


def identity_volume(audience: str) -> dict[str, Any]:
    """Returns the volume with a token that proves to `audience` which pod it belongs to."""
    token = {"path": _TOKEN, "expirationSeconds": _TOKEN_S, "audience": audience}
    return {"name": _IDENTITY, "projected": {"sources": [{"serviceAccountToken": token}]}}


def identity_mount() -> dict[str, Any]:
    """Returns the mount of that volume in a container."""
    return {"name": _IDENTITY, "mountPath": _IDENTITY_DIRECTORY, "readOnly": True}


def identity_variable() -> tuple[str, str]:
    """Returns the variable that names its token to a proxy."""
    return "SPS_IDENTITY_TOKEN_FILE", f"{_IDENTITY_DIRECTORY}/{_TOKEN}"
