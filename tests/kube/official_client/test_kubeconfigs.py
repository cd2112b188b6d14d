"""Clients that `kubernetes.config` makes of a kubeconfig: we send what they send."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration

from shared_pathways_service.kube.official_client import login_of
from tests.kube.certificates import Authority
from tests.kube.kubeconfigs import encoded, plugin_that_says, runs
from tests.kube.kubectl_world import ID_TOKEN, OIDC
from tests.kube.official_client.support import ask_ours_later, seen_of_both
from tests.kube.recording_server import RecordingServer

OIDC_USER = {"auth-provider": {"name": "oidc", "config": {**OIDC, "id-token": ID_TOKEN}}}
BEARER = "Bearer {}".format
EXPIRED = "2001-01-01T00:00:00Z"


@pytest.fixture
def kubeconfig(server: RecordingServer, authority: Authority, own_directories: Path) -> Path:
    """A kubeconfig whose user `write_user` writes."""
    own_directories.mkdir(exist_ok=True)
    path = own_directories / "config"
    cluster = {
        "server": f"https://127.0.0.1:{server.port}/prefix",
        "certificate-authority-data": encoded(authority.certificate),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def write_user(kubeconfig: Path, user: dict[str, Any]) -> None:
    document = yaml.safe_load(kubeconfig.read_text())
    document["users"] = [{"name": "c", "user": user}]
    kubeconfig.write_text(yaml.safe_dump(document))


def client_of(kubeconfig: Path) -> ApiClient:
    client = config.new_client_from_config(str(kubeconfig))
    client.configuration.retries = False
    return client


def header(server: RecordingServer, client: ApiClient) -> str:
    return dict(seen_of_both(server, client).headers)["authorization"]


def test_an_id_token(server: RecordingServer, kubeconfig: Path) -> None:
    write_user(kubeconfig, OIDC_USER)
    assert header(server, client_of(kubeconfig)) == BEARER(ID_TOKEN)


def test_the_default_client(
    server: RecordingServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Configuration, "_default", None)
    write_user(kubeconfig, OIDC_USER)
    config.load_kube_config(str(kubeconfig))
    client = ApiClient()
    client.configuration.retries = False
    assert header(server, client) == BEARER(ID_TOKEN)


@pytest.mark.local
def test_a_token_of_a_plugin_and_its_successor(
    server: RecordingServer, kubeconfig: Path, own_directories: Path
) -> None:
    status = {"token": "one", "expirationTimestamp": EXPIRED}
    write_user(kubeconfig, plugin_that_says(own_directories, status))
    client = client_of(kubeconfig)
    assert runs(own_directories) == 1
    assert header(server, client) == BEARER("one")
    ran = runs(own_directories)
    answer = json.loads((own_directories / "answer.json").read_text())
    answer["status"]["token"] = "two"
    (own_directories / "answer.json").write_text(json.dumps(answer))
    # The client's hook runs the plug-in again, as its token has expired.
    asyncio.run(ask_ours_later(client, BEARER("one")))
    assert runs(own_directories) > ran
    assert [dict(one.headers)["authorization"] for one in server.seen] == [BEARER("two")]
    assert login_of(client).header == BEARER("two")


@pytest.mark.local
def test_a_certificate_of_a_plugin(
    server: RecordingServer, kubeconfig: Path, own_directories: Path, authority: Authority
) -> None:
    certificate, key = authority.issue("alice")
    status = {"clientCertificateData": certificate, "clientKeyData": key}
    write_user(kubeconfig, plugin_that_says(own_directories, status))
    seen = seen_of_both(server, client_of(kubeconfig))
    assert (seen.client, seen.headers) == ("alice", ())
