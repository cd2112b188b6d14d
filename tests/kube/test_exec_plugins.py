"""Exec plug-ins of a kubeconfig: their calls, failures and ends."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.exec_plugin import Plugin
from tests.kube.control_plane import ControlPlane
from tests.kube.kubeconfigs import NOBODY, plugin_that_says, runs, who


def test_plugin_runs_once_and_again_when_its_token_is_refused(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None]
) -> None:
    user = plugin_that_says(own_directories, {"token": "expired"}, provideClusterInfo=True)
    use(control_plane.kubeconfig(user))

    async def work() -> None:
        async with KubeApi(await resolve(NOBODY)) as api:
            with pytest.raises(AccessDenied) as caught:
                await api.get(paths.collection("nodes"))
            assert caught.value.verb == "connect"
            assert runs(own_directories) == 2
            answer = json.loads((own_directories / "answer.json").read_text())
            answer["status"]["token"] = control_plane.admin
            (own_directories / "answer.json").write_text(json.dumps(answer))
            await asyncio.gather(*(api.get(paths.collection("nodes")) for _ in range(5)))
            assert runs(own_directories) == 3

    asyncio.run(work())
    info = json.loads((own_directories / "info").read_text())
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == control_plane.url


def test_an_invalid_certificate_of_a_plugin(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None]
) -> None:
    given = {"clientCertificateData": "nonsense", "clientKeyData": "nonsense"}
    use(control_plane.kubeconfig(plugin_that_says(own_directories, given)))
    with pytest.raises(AccessDenied, match="no certificate"):
        who(asyncio.run(resolve(NOBODY)))


def script(text: str) -> Plugin:
    version = "client.authentication.k8s.io/v1"
    command = {"apiVersion": version, "command": sys.executable, "args": ["-c", text]}
    hint = {"installHint": "install it from somewhere"}
    return Plugin(exec={**command, **hint}, cluster={}, where=Path("/"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit('please log in')", "please log in"),
        ("print('hello')", "no ExecCredential"),
        ("print('{}')", "no ExecCredential"),
        ("print('{\"status\": {}}')", "neither token"),
    ],
)
def test_a_failing_plugin_is_reported(text: str, said: str) -> None:
    with pytest.raises(AccessDenied) as caught:
        asyncio.run(script(text).run())
    assert said in caught.value.message
    assert caught.value.hint == "install it from somewhere"


def test_a_missing_plugin() -> None:
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin"}
    with pytest.raises(AccessDenied, match="no-such-plugin cannot be started"):
        asyncio.run(Plugin(exec=command, cluster={}, where=Path("/")).run())


def test_a_plugin_ends_with_its_waiter(own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    fifo = own_directories / "started"
    os.mkfifo(fifo)
    text = f"import time; open({str(fifo)!r}, 'w').close(); time.sleep(600)"

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(script(text).run())
            await asyncio.to_thread(fifo.read_bytes)
            running.cancel()
        assert running.cancelled()

    asyncio.run(work())  # and `leaves_nothing_behind` looks for the process


@pytest.mark.parametrize(
    ("exec_", "field"),
    [
        ({"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}, "apiVersion"),
        ({"apiVersion": "client.authentication.k8s.io/v1"}, "command"),
        (
            {
                "command": "x",
                "apiVersion": "client.authentication.k8s.io/v1",
                "interactiveMode": "Always",
            },
            "interactiveMode",
        ),
    ],
)
def test_an_unusable_plugin(exec_: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        Plugin(exec=exec_, cluster={}, where=Path("/"))
    assert field in caught.value.field
