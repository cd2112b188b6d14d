"""Every way to authenticate to a cluster, on a real API server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.in_cluster import in_cluster_access, is_in_cluster
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig
from tests.kube.control_plane import HANDSHAKE, ControlPlane
from tests.kube.kubeconfigs import NOBODY, WHO_AM_I, encoded, plugin_that_says, who


@pytest.mark.parametrize("kind", ["token", "tokenFile", "certificate", "exec", "exec-certificate"])
def test_ways_of_a_kubeconfig(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None], kind: str
) -> None:
    certificate, key = control_plane.clients.issue("alice", group="tenants")
    own_directories.mkdir(exist_ok=True)
    (own_directories / "token").write_text(f"{control_plane.alice}\n")
    credential = {"clientCertificateData": certificate, "clientKeyData": key}
    users: dict[str, Callable[[], dict[str, Any]]] = {
        "token": lambda: {"token": control_plane.alice},
        "tokenFile": lambda: {"tokenFile": str(own_directories / "token")},
        "certificate": lambda: {
            "client-certificate-data": encoded(certificate),
            "client-key-data": encoded(key),
        },
        "exec": lambda: plugin_that_says(own_directories, {"token": control_plane.alice}),
        "exec-certificate": lambda: plugin_that_says(own_directories, credential),
    }
    user = users[kind]()
    path = control_plane.kubeconfig(user, namespace="team-a")
    before = path.read_bytes()
    use(path)
    access = asyncio.run(resolve(NOBODY))
    assert (access.namespace, access.name) == ("team-a", "context tb")
    assert who(access) == "alice"
    assert path.read_bytes() == before


def test_impersonation(control_plane: ControlPlane, use: Callable[[Path], None]) -> None:
    use(control_plane.kubeconfig({"token": control_plane.admin, "as": "bob"}))
    assert who(asyncio.run(resolve(NOBODY))) == "bob"


def test_impersonation_with_all_that_goes_with_it(own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    path = own_directories / "kubeconfig"
    user = "as: bob, as-groups: [a, b], as-user-extra: {Reason/why: [x, y]}"
    path.write_text(of_cluster("server: 'https://x'", user))
    assert access_of_context(read_kubeconfig([path]), "a").headers == (
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-reason%2Fwhy", "x"),
        ("Impersonate-Extra-reason%2Fwhy", "y"),
    )


def test_a_server_of_another_authority_is_refused(
    control_plane: ControlPlane, use: Callable[[Path], None], own_directories: Path
) -> None:
    from shared_pathways_service.kube.errors import ApiUnreachable

    path = control_plane.kubeconfig({"token": control_plane.admin})
    document = json.loads(path.read_text())
    document["clusters"][0]["cluster"]["certificate-authority-data"] = encoded(
        control_plane.clients.certificate
    )
    path.write_text(json.dumps(document))
    use(path)
    with pytest.raises(ApiUnreachable) as caught:
        who(asyncio.run(resolve(NOBODY)))
    assert caught.value.is_final
    document["clusters"][0]["cluster"] = {
        "server": control_plane.url,
        "insecure-skip-tls-verify": True,
    }
    path.write_text(json.dumps(document))
    assert who(asyncio.run(resolve(NOBODY))) == "admin"


def test_service_accounts_token_that_has_expired(
    control_plane: ControlPlane, namespace: str, own_directories: Path, use: Callable[[Path], None]
) -> None:
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    made = control_plane.call("POST", accounts, {"metadata": {"name": "tenant"}})
    user = plugin_that_says(own_directories, {"token": control_plane.expired_token(made)})
    use(control_plane.kubeconfig(user))

    async def work() -> None:
        async with KubeApi(await resolve(NOBODY)) as api:
            with pytest.raises(AccessDenied) as caught:
                await api.request("POST", WHO_AM_I, body={})
            assert caught.value.verb == "connect"
            asked = {"spec": {"expirationSeconds": 600}}
            given = control_plane.call("POST", f"{accounts}/tenant/token", asked)["status"]
            plugin_that_says(own_directories, given)
            answer = await api.request("POST", WHO_AM_I, body={})
            name = answer["status"]["userInfo"]["username"]
            assert name == f"system:serviceaccount:{namespace}:tenant"

    asyncio.run(work())


def test_a_websocket_gets_a_valid_token(
    control_plane: ControlPlane, own_directories: Path, use: Callable[[Path], None]
) -> None:
    from shared_pathways_service.kube.errors import ApiError

    user = plugin_that_says(own_directories, {"token": "expired"})
    use(control_plane.kubeconfig(user))

    async def work() -> None:
        async with KubeApi(await resolve(NOBODY)) as api:
            await api.access.tokens.header()
            answer = json.loads((own_directories / "answer.json").read_text())
            answer["status"]["token"] = control_plane.admin
            (own_directories / "answer.json").write_text(json.dumps(answer))
            with pytest.raises(ApiError) as caught:
                await api.upgrade(paths.port_forward("default", "p"), headers=HANDSHAKE)
            # Who we are was accepted: only there is no such pod.
            assert caught.value.status == 404

    asyncio.run(work())


def test_several_files_first_one_is_right(own_directories: Path) -> None:
    own_directories.mkdir(exist_ok=True)
    one, two = own_directories / "one", own_directories / "two"
    one.write_text("contexts: [{name: a, context: {cluster: from-one}}]\n")
    two.write_text(
        "current-context: b\n"
        "contexts: [{name: a, context: {cluster: from-two}}, {name: b, context: {}}]\n"
        "clusters:\nusers: []\n"
    )
    config = read_kubeconfig([one, own_directories / "missing", two])
    assert config.current == "b"
    assert sorted(config.contexts) == ["a", "b"]
    assert config.contexts["a"].data["cluster"] == "from-one"


def of_cluster(cluster: str, user: str = "") -> str:
    return (
        "{contexts: [{name: a, context: {cluster: c, user: u}}], "
        f"clusters: [{{name: c, cluster: {{{cluster}}}}}], "
        f"users: [{{name: u, user: {{{user}}}}}]}}"
    )


@pytest.mark.parametrize(
    ("text", "context", "field"),
    [
        ("[", "", "kubeconfig"),
        ("- a list", "", "kubeconfig"),
        ("contexts: [{name: a, context: {cluster: c}}]", "b", "context"),
        ("contexts: [{name: a, context: {cluster: c}}]", "a", "cluster of context a"),
        ("contexts: [{context: {cluster: c}}]", "a", "kubeconfig"),
        (of_cluster("server: 'https://x'").replace("name: u", "name: v"), "a", "user of context a"),
        (of_cluster("server: 'ftp://x'"), "a", "server of cluster c"),
        (of_cluster("server: 'https://x'", "auth-provider: {name: gcp}"), "a", "auth-provider"),
        (of_cluster("server: 'https://x', proxy-url: 'ftp://y'"), "a", "proxy-url"),
        (
            of_cluster("server: 'https://x', certificate-authority: none.crt"),
            "a",
            "certificate-authority of cluster c",
        ),
        (
            of_cluster("server: 'https://x', certificate-authority-data: aGVsbG8="),
            "a",
            "certificate-authority-data of cluster c",
        ),
    ],
)
def test_an_invalid_kubeconfig(
    own_directories: Path, use: Callable[[Path], None], text: str, context: str, field: str
) -> None:
    own_directories.mkdir(exist_ok=True)
    path = own_directories / "kubeconfig"
    path.write_text(text)
    use(path)
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(resolve(ClusterChoice(context=context)))
    assert field in caught.value.field


def test_pod_of_the_cluster(
    control_plane: ControlPlane, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_directories.mkdir(exist_ok=True)
    assert not is_in_cluster(own_directories)
    (own_directories / "ca.crt").write_text(control_plane.authority)
    (own_directories / "namespace").write_text("team-b\n")
    (own_directories / "token").write_text("old")
    host, port = control_plane.url.removeprefix("https://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    assert is_in_cluster(own_directories)
    access = in_cluster_access(own_directories)
    assert access.namespace == "team-b"

    async def work() -> None:
        async with KubeApi(access) as api:
            await access.tokens.header()
            # The kubelet has written a new one since.
            (own_directories / "token").write_text(control_plane.admin)
            await api.get(paths.collection("nodes"))

    asyncio.run(work())


def test_no_cluster_at_all(
    own_directories: Path, use: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = set(threading.enumerate())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    use(own_directories / "missing")
    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(resolve(NOBODY))
    assert caught.value.field == "cluster"
    with pytest.raises(InvalidRequestError, match="project"):
        ClusterChoice(cluster="c", region="r")
    with pytest.raises(InvalidRequestError, match="context"):
        ClusterChoice(cluster="c", project="p", region="r", context="x")
    assert set(threading.enumerate()) <= threads
