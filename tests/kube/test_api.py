"""Requests against a real API server."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.errors import (
    CONNECT_VERB,
    ApiError,
    ApiUnreachable,
    error_of_answer,
)
from shared_pathways_service.kube.tokens import Token, TokenSource
from shared_pathways_service.manifests.lifetime import deadline_patch
from tests.kube.control_plane import HANDSHAKE, ControlPlane
from tests.kube.support import WAIT_S, allow, secret, with_api


def test_life_of_an_object(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        path = paths.collection("secrets", namespace)
        made = await api.create(path, secret("one", "s1"))
        one = paths.item("secrets", namespace, "one")
        patched = await api.patch(one, {"metadata": {"annotations": {"a": "b"}}})
        assert patched["metadata"]["annotations"] == {"a": "b"}
        assert (await api.get(one))["metadata"]["uid"] == made["metadata"]["uid"]
        assert not await api.delete(one, uid="00000000-0000-0000-0000-000000000000")
        assert await api.delete(one, uid=made["metadata"]["uid"])
        assert not await api.delete(one, uid=made["metadata"]["uid"])
        with pytest.raises(ApiError) as caught:
            await api.get(one)
        assert (caught.value.status, caught.value.reason) == (404, "NotFound")
        assert caught.value.is_final

    with_api(control_plane, control_plane.admin, work)


def test_deadline_moved_is_that_of_one_job(control_plane: ControlPlane, namespace: str) -> None:
    async def work(api: KubeApi) -> None:
        containers = [{"name": "main", "image": "nothing"}]
        template = {"spec": {"restartPolicy": "Never", "containers": containers}}
        job = {"metadata": {"name": "one"}, "spec": {"template": template}}
        made = await api.create(paths.collection("jobs", namespace), job)
        one = paths.item("jobs", namespace, "one")
        with pytest.raises(ApiError) as caught:
            await api.patch(one, deadline_patch(77, "00000000-0000-0000-0000-000000000000"))
        assert caught.value.reason == "Invalid"
        assert caught.value.is_final
        assert "activeDeadlineSeconds" not in (await api.get(one))["spec"]
        patched = await api.patch(one, deadline_patch(77, made["metadata"]["uid"]))
        assert patched["spec"]["activeDeadlineSeconds"] == 77

    with_api(control_plane, control_plane.admin, work)


def test_create_again_is_ours_only_under_our_session(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def work(api: KubeApi) -> None:
        path = paths.collection("secrets", namespace)
        made = await api.create(path, secret("one", "s1"))
        again = await api.create(path, secret("one", "s1"))
        assert again["metadata"]["uid"] == made["metadata"]["uid"]
        for other in ("s2", ""):
            with pytest.raises(ApiError) as caught:
                await api.create(path, secret("one", other))
            assert caught.value.reason == "AlreadyExists"
            assert not caught.value.may_have_succeeded
        await api.create(path, secret("unlabelled"))
        with pytest.raises(ApiError):
            await api.create(path, secret("unlabelled"))

    with_api(control_plane, control_plane.admin, work)


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource"),
    [
        ("GET", "/apis/batch/v1/namespaces/NS/jobs", "list", "jobs"),
        ("POST", "/apis/batch/v1/namespaces/NS/jobs", "create", "jobs"),
        ("DELETE", "/apis/batch/v1/namespaces/NS/jobs/j", "delete", "jobs"),
        ("PATCH", "/apis/batch/v1/namespaces/NS/jobs/j", "patch", "jobs"),
        ("GET", "/api/v1/namespaces/NS/pods/p/log", "get", "pods/log"),
    ],
)
def test_what_is_not_allowed_is_named(
    control_plane: ControlPlane, namespace: str, method: str, path: str, verb: str, resource: str
) -> None:
    async def work(api: KubeApi) -> None:
        with pytest.raises(AccessDenied) as caught:
            await api.request(method, path.replace("NS", namespace), body={"metadata": {}})
        error = caught.value
        assert (error.verb, error.resource, error.namespace) == (verb, resource, namespace)
        assert f'"verbs": ["{verb}"]' in error.rule
        assert 'User "alice" cannot' in error.message

    with_api(control_plane, control_plane.alice, work)


def test_port_forward_that_is_not_allowed(control_plane: ControlPlane, namespace: str) -> None:
    async def connect(api: KubeApi) -> None:
        await api.upgrade(
            paths.port_forward(namespace, "p"), params={"ports": "29000"}, headers=HANDSHAKE
        )

    async def denied(api: KubeApi) -> None:
        with pytest.raises(AccessDenied) as caught:
            await connect(api)
        assert (caught.value.verb, caught.value.resource) == ("create", "pods/portforward")

    async def missing(api: KubeApi) -> None:
        with pytest.raises(ApiError) as caught:
            await connect(api)
        assert (caught.value.status, caught.value.is_final) == (404, True)

    with_api(control_plane, control_plane.alice, denied)
    with_api(control_plane, control_plane.admin, missing)


def test_quota_is_no_lack_of_permission(control_plane: ControlPlane, namespace: str) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "0"}}}
    made = control_plane.call(
        "POST", paths.collection("resourcequotas", namespace), {**quota, "status": quota["spec"]}
    )
    status = {**made, "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}}}
    control_plane.call("PUT", paths.item("resourcequotas", namespace, "q") + "/status", status)

    async def work(api: KubeApi) -> None:
        with pytest.raises(ApiError) as caught:
            await api.create(paths.collection("secrets", namespace), secret("one", "s1"))
        assert (caught.value.status, caught.value.is_final) == (403, True)
        assert "exceeded quota" in caught.value.message

    with_api(control_plane, control_plane.admin, work)


def test_a_webhooks_words_are_no_lack_of_permission() -> None:
    target = paths.target_of("POST", paths.collection("jobs", "n"), {})
    said = 'admission webhook "labels" denied the request: jobs cannot be created without label "x"'
    error = error_of_answer(target, 403, {"kind": "Status", "message": said})
    assert isinstance(error, ApiError)
    assert said in error.message


def test_credentials_that_do_not_come_are_named() -> None:
    async def hang() -> Token:
        await asyncio.Event().wait()
        raise AssertionError

    async def work() -> None:
        source = TokenSource(hang, of="slow-plugin")
        access = ClusterAccess(server="http://127.0.0.1:1", tls=None, tokens=source)
        async with KubeApi(access) as api:
            with pytest.raises(ApiUnreachable, match="slow-plugin has not answered"):
                await api.get(paths.collection("nodes"), timeout_s=0.2)
            path = paths.port_forward("n", "p")
            with pytest.raises(ApiUnreachable, match="slow-plugin has not answered"):
                await api.upgrade(path, headers=HANDSHAKE, timeout_s=0.2)

    asyncio.run(work())


@pytest.mark.race
def test_request_goes_on_when_the_server_is_back(
    control_plane: ControlPlane, namespace: str
) -> None:
    allow(control_plane, namespace, {"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]})

    async def work(api: KubeApi) -> None:
        path = paths.collection("secrets", namespace)
        control_plane.kill()
        async with asyncio.TaskGroup() as group:
            creating = group.create_task(api.create(path, secret("one", "s1"), timeout_s=WAIT_S))
            control_plane.spawn()
            await asyncio.to_thread(control_plane.wait_until_ready)
        assert (await creating)["metadata"]["name"] == "one"

    with_api(control_plane, control_plane.alice, work)


def test_credentials_that_expired_while_the_server_was_away(
    control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.1")
    path = paths.port_forward("n", "p")

    async def work(api: KubeApi) -> None:
        control_plane.kill()
        with pytest.raises(ApiUnreachable):
            await api.upgrade(path, headers=HANDSHAKE)
        control_plane.spawn()
        await asyncio.to_thread(control_plane.wait_until_ready)
        # At first it may not know its users yet. That it refuses them is said all the same.
        causes = []
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await api.upgrade(path, headers=HANDSHAKE, timeout_s=1.0)
                except ApiUnreachable as error:
                    # (A busy server may not answer in time at all.)
                    if "no handshake within" not in error.cause:
                        causes.append(error.cause)
                except AccessDenied as error:
                    verb = error.verb
                    break
        assert verb == CONNECT_VERB
        assert all("credentials" in cause for cause in causes), causes

    with_api(control_plane, "expired", work)


def test_server_that_stays_away(control_plane: ControlPlane) -> None:
    async def work(api: KubeApi) -> None:
        with pytest.raises(ApiUnreachable) as caught:
            await api.get(paths.collection("nodes"), timeout_s=1)
        assert caught.value.server == control_plane.url
        with pytest.raises(ApiUnreachable):
            await api.upgrade(paths.port_forward("n", "p"), headers=HANDSHAKE)
        with pytest.raises(ApiUnreachable):
            await anext(api.stream_lines(paths.pod_log("n", "p")))

    control_plane.kill()
    with_api(control_plane, control_plane.admin, work)


def test_lines_of_an_answer(control_plane: ControlPlane) -> None:
    async def work(api: KubeApi) -> None:
        lines = [line async for line in api.stream_lines("/metrics")]
        assert lines[0].startswith("# HELP")
        assert len(lines) > 1000

    with_api(control_plane, control_plane.admin, work)


@pytest.mark.real_starts
def test_imports_neither_a_kubernetes_client_nor_google() -> None:
    """Each would cost a connect() more than its requests do."""
    code = (
        "import sys, shared_pathways_service.kube.access, shared_pathways_service.kube.watch\n"
        "found = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(found & {'kubernetes', 'google', 'grpc', 'jax', 'pydantic', 'requests'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
