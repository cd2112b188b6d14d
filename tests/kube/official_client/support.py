"""Requests of the official client, and ours with the access that it hands over."""

from __future__ import annotations

import asyncio
import dataclasses
import json

from kubernetes.client import ApiClient, CoreV1Api

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.given_access import access_of
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.kube.official_client import handed_over, login_of
from tests.kube.recording_server import RecordingServer, Seen

NAME = "api.corp.test"
PODS = "/api/v1/namespaces/default/pods"


async def unasked() -> Login:
    raise AssertionError("not needed")


def carried(given: object) -> HandedOver:
    """Returns what arrives at the agent."""
    return HandedOver.from_json(json.loads(json.dumps(dataclasses.asdict(handed_over(given)))))


def ask_ours(given: object, timeout_s: float | None = None) -> None:
    async def get() -> None:
        async with KubeApi(access_of(carried(given), unasked)) as api:
            await api.get(PODS, timeout_s=timeout_s)

    asyncio.run(get())


def ask_official(given: object) -> None:
    client = given if isinstance(given, ApiClient) else ApiClient(given)
    CoreV1Api(client).list_namespaced_pod("default", _preload_content=False)
    client.rest_client.pool_manager.clear()


def seen_of_both(server: RecordingServer, given: object) -> Seen:
    ask_official(given)
    ask_ours(given)
    official, ours = server.seen
    assert ours == official
    server.seen.clear()
    return ours


async def ask_ours_later(given: object, refused: str) -> None:
    """Sends a request after the server has refused the login that was handed over."""

    async def ask() -> Login:
        return login_of(given)

    access = access_of(carried(given), ask)
    await access.tokens.header()
    access.tokens.refused(refused)
    async with KubeApi(access) as api:
        await api.get(PODS)
