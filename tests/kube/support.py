"""Objects, rights and watches for tests against a real API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from harness.deadlines import deadline
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from shared_pathways_service.kube.watch import WatchEvent, watch
from shared_pathways_service.manifests.names import LABEL_SESSION
from tests.kube.control_plane import ControlPlane

WAIT_S = deadline(90.0)


def secret(name: str, session: str = "") -> dict[str, Any]:
    labels = {LABEL_SESSION: session} if session else {}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": labels}}


def with_api(plane: ControlPlane, token: str, work: Callable[[KubeApi], Awaitable[None]]) -> None:
    config = read_kubeconfig([plane.kubeconfig({"token": token})])

    async def main() -> None:
        async with KubeApi(access_of_context(config)) as api:
            await work(api)

    asyncio.run(main())


def allow(plane: ControlPlane, namespace: str, *rules: dict[str, Any]) -> None:
    """Lets alice do so in the namespace."""
    group = "rbac.authorization.k8s.io"
    root = f"/apis/{group}/v1/namespaces/{namespace}"
    plane.call("POST", f"{root}/roles", {"metadata": {"name": "alice"}, "rules": rules})
    binding = {
        "metadata": {"name": "alice"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "alice"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}],
    }
    plane.call("POST", f"{root}/rolebindings", binding)
    plane.wait_for_rules(namespace, rules)


class Watching:
    """The events of a watch, taken one by one."""

    def __init__(self, events: AsyncIterator[WatchEvent]) -> None:
        self._events = events

    async def next(self) -> tuple[str, str]:
        event = await asyncio.wait_for(anext(self._events), WAIT_S)
        return event.kind, event.object["metadata"]["name"] if event.object else ""

    async def until_synced(self) -> list[tuple[str, str]]:
        events = []
        while (last := await self.next()) != ("SYNCED", ""):
            events.append(last)
        return events


@contextlib.asynccontextmanager
async def watched(api: KubeApi, path: str, **options: Any) -> AsyncIterator[Watching]:
    async with contextlib.aclosing(watch(api, path, **options)) as events:
        yield Watching(events)


def create(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    made: dict[str, Any] = plane.call("POST", paths.collection("secrets", namespace), secret(name))
    return made
