"""Kubeconfigs, exec plug-ins, and who the API server takes a client for."""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
from pathlib import Path
from typing import Any

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice

NOBODY = ClusterChoice()
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def who(access: ClusterAccess) -> str:
    """Asks the API server who we are."""

    async def ask() -> str:
        async with KubeApi(access) as api:
            answer = await api.request("POST", WHO_AM_I, body={})
            return str(answer["status"]["userInfo"]["username"])

    return asyncio.run(ask())


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def plugin_that_says(directory: Path, status: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Returns the exec of a plug-in that counts how often it ran."""
    directory.mkdir(exist_ok=True)
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    (directory / "answer.json").write_text(json.dumps(answer))
    program = directory / "plugin"
    program.write_text(
        f"#!/bin/sh\ncd {shlex.quote(str(directory))}\n"
        'echo ran >> runs\nprintf "%s" "$KUBERNETES_EXEC_INFO" > info\ncat answer.json\n'
    )
    program.chmod(0o700)
    spec = {"apiVersion": answer["apiVersion"], "interactiveMode": "Never"}
    return {"exec": {**spec, "command": str(program), "args": ["x"], **more}}


def runs(directory: Path) -> int:
    return len((directory / "runs").read_text().splitlines())
