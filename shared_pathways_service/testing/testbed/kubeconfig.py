"""Writes kubeconfig files into the testbed's directory, never into the user's home."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from shared_pathways_service.testing.testbed.users import User

__all__ = ["CONTEXT", "write_kubeconfig"]

#: Name of the only context of each file.
CONTEXT = "testbed"


def write_kubeconfig(
    path: Path, server: str, authority: Path, user: User, *, namespace: str = "default"
) -> Path:
    """Writes one user's kubeconfig, readable by this user only; returns its path."""
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
    }
    context = {"cluster": CONTEXT, "user": user.name, "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": user.name, "user": {"token": user.token}}],
        "contexts": [{"name": CONTEXT, "context": context}],
        "current-context": CONTEXT,
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
