"""Watches of a real API server, that is killed and forgets under them."""

from __future__ import annotations

import asyncio

import pytest

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from tests.kube.control_plane import ControlPlane
from tests.kube.support import WAIT_S, allow, create, watched, with_api


def change(plane: ControlPlane, namespace: str, name: str) -> None:
    body = {"metadata": {"annotations": {"changed": "yes"}}}
    plane.call("PATCH", paths.item("secrets", namespace, name), body)


def delete(plane: ControlPlane, namespace: str, name: str) -> None:
    plane.call("DELETE", paths.item("secrets", namespace, name))


def test_yields_existing_objects_and_their_changes(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def work(api: KubeApi) -> None:
        create(control_plane, namespace, "a")
        async with watched(api, paths.collection("secrets", namespace)) as watching:
            assert await watching.until_synced() == [("ADDED", "a")]
            create(control_plane, namespace, "b")
            assert await watching.next() == ("ADDED", "b")
            change(control_plane, namespace, "a")
            assert await watching.next() == ("MODIFIED", "a")
            delete(control_plane, namespace, "b")
            assert await watching.next() == ("DELETED", "b")

    with_api(control_plane, control_plane.admin, work)


def test_the_connection_ends_with_its_watch(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        async with watched(api, paths.collection("secrets", namespace)) as watching:
            await watching.until_synced()
            create(control_plane, namespace, "a")
            await watching.next()
            assert api._transport._session is not None
            connector = api._transport._session.connector
            assert connector is not None
            assert connector._acquired
        assert not connector._acquired

    with_api(control_plane, control_plane.admin, work)


def test_goes_on_from_a_version_without_a_list(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        made = create(control_plane, namespace, "a")
        create(control_plane, namespace, "b")
        only_b = {"fieldSelector": "metadata.name=b"}
        version = made["metadata"]["resourceVersion"]
        path = paths.collection("secrets", namespace)
        async with watched(api, path, params=only_b, resource_version=version) as watching:
            assert await watching.next() == ("ADDED", "b")

    with_api(control_plane, control_plane.admin, work)


@pytest.mark.race
def test_api_server_killed_in_the_middle(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        async with watched(api, paths.collection("secrets", namespace)) as watching:
            assert await watching.until_synced() == []
            create(control_plane, namespace, "a")
            assert await watching.next() == ("ADDED", "a")
            control_plane.kill()
            # Refused, while it is away and until it knows alice again.
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(watching.next())
                control_plane.spawn()
                await asyncio.to_thread(control_plane.wait_until_ready)
                create(control_plane, namespace, "b")
            events = [await waiting]
            while ("ADDED", "b") not in events:
                events.append(await watching.next())
            # Either resumed, or listed again: nothing told twice, nothing left out.
            assert [e for e in events if e[0] != "SYNCED"] == [("ADDED", "b")]

    allow(control_plane, namespace, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]})
    with_api(control_plane, control_plane.alice, work)


def test_version_that_is_gone(control_plane: ControlPlane, namespace: str) -> None:
    known = [create(control_plane, namespace, name) for name in ("kept", "changed", "deleted")]
    change(control_plane, namespace, "changed")
    delete(control_plane, namespace, "deleted")
    create(control_plane, namespace, "new")
    control_plane.kill()
    control_plane.compact()
    control_plane.start()

    async def work(api: KubeApi) -> None:
        path = paths.collection("secrets", namespace)
        version = known[-1]["metadata"]["resourceVersion"]
        async with watched(api, path, resource_version=version, known=known) as watching:
            assert sorted(await watching.until_synced()) == [
                ("ADDED", "new"),
                ("DELETED", "deleted"),
                ("MODIFIED", "changed"),
            ]
            create(control_plane, namespace, "newer")
            assert await watching.next() == ("ADDED", "newer")

    with_api(control_plane, control_plane.admin, work)


def test_final_answers_end_it_at_once(control_plane: ControlPlane, namespace: str) -> None:
    async def denied(api: KubeApi) -> None:
        async with watched(api, paths.collection("pods", namespace)) as watching:
            with pytest.raises(AccessDenied) as caught:
                await watching.next()
            assert (caught.value.verb, caught.value.resource) == ("list", "pods")

    async def unknown(api: KubeApi) -> None:
        async with watched(api, paths.collection("jobsets", namespace)) as watching:
            with pytest.raises(ApiError) as caught:
                await watching.next()
            assert caught.value.status == 404

    with_api(control_plane, control_plane.alice, denied)
    with_api(control_plane, control_plane.admin, unknown)


@pytest.mark.race
def test_trouble_and_its_end_are_reported(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        troubles: asyncio.Queue[str] = asyncio.Queue()
        path = paths.collection("secrets", namespace)
        async with watched(api, path, on_trouble=troubles.put_nowait) as watching:
            assert await watching.until_synced() == []
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(watching.next())
                control_plane.kill()
                assert control_plane.url in await asyncio.wait_for(troubles.get(), WAIT_S)
                control_plane.spawn()
                await asyncio.to_thread(control_plane.wait_until_ready)
                create(control_plane, namespace, "a")
            assert await waiting in {("ADDED", "a"), ("SYNCED", "")}
            assert await asyncio.wait_for(troubles.get(), WAIT_S) == ""
            assert troubles.empty()

    with_api(control_plane, control_plane.admin, work)


@pytest.mark.race
def test_gives_up_on_a_server_that_stays_away(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        path = paths.collection("secrets", namespace)
        async with watched(api, path, give_up_after_s=1.0) as watching:
            assert await watching.until_synced() == []
            control_plane.kill()
            with pytest.raises(ApiUnreachable) as caught:
                await watching.next()
            assert caught.value.server == control_plane.url

    with_api(control_plane, control_plane.admin, work)
