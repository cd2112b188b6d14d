"""`sps deploy --ui`: the page in the cluster, from its creation to its end."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest

from harness.programs import DEADLINE_S, sps, sps_failing, sps_json
from harness.testbed.clients import KIND
from shared_pathways_service.manifests.page_parts import PAGE_PORT
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import OUR_SERVER_IMAGE
from tests.testbed.roles import rendered_user
from tests.web.issuer import Issuer, serving_documents

URL = "https://tpus.example.org/"
DEPLOYMENTS = "apps/v1/deployments"
PARTS = (DEPLOYMENTS, "services", "serviceaccounts")


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its operator."""
    namespace.add_nodes({KIND: 1}, cpu_nodes=1)
    for name, value in rendered_user(namespace, "operator").items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={namespace.name}"]


def ready_page(namespace: Namespace, *, other_than: str = "") -> Mapping[str, Any]:
    """Waits for the page's pod; `other_than` is the uid of one before it."""

    def found(pods: Any) -> Any:
        return next(
            (
                pod
                for pod in pods
                if pod["metadata"]["uid"] != other_than
                and any(
                    one["type"] == "Ready" and one["status"] == "True"
                    for one in pod.get("status", {}).get("conditions") or ()
                )
            ),
            None,
        )

    pod: Mapping[str, Any] = namespace.wait_until(
        "pods", found, what="ready page", labelSelector="app=pw-ui"
    )
    return pod


def asked(
    pod: Mapping[str, Any], path: str, headers: Mapping[str, str], data: bytes | None = None
) -> Any:
    """Asks the page as its proxy does, which passes on the name that it was asked for."""
    request = urllib.request.Request(
        f"http://{pod['status']['podIP']}:{PAGE_PORT}{path}",
        data,
        {"Host": "tpus.example.org", **headers},
    )
    return urllib.request.urlopen(request, timeout=DEADLINE_S)


def status_of(
    pod: Mapping[str, Any], path: str, headers: Mapping[str, str], data: bytes | None = None
) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        asked(pod, path, headers, data)
    with refused.value as answer:
        return answer.status or 0


def parts_of(namespace: Namespace) -> set[str]:
    return {
        resource
        for resource in PARTS
        if any(one["metadata"]["name"] == "pw-ui" for one in namespace.items(resource))
    }


def test_a_service_shows_its_page_to_whom_a_proxy_names(
    namespace: Namespace, place: list[str]
) -> None:
    image = (f"--slices={KIND}=1", f"--server-image={OUR_SERVER_IMAGE}")
    code, err = sps_failing("deploy", "pw", *image, "--ui", *place)
    assert code == 2
    assert "--ui-identity" in err
    assert "oauth2-proxy" in err
    assert parts_of(namespace) == set()

    documents: dict[str, Any] = {}
    with serving_documents(documents) as (issuer_url, _):
        issuer = Issuer(issuer_url, "RS256")
        documents["/keys"] = issuer.jwks()
        documents["/.well-known/openid-configuration"] = {
            "issuer": issuer_url,
            "jwks_uri": f"{issuer_url}/keys",
        }
        identity = ("--ui", f"--ui-url={URL}", "--ui-identity=oidc", f"--ui-issuer={issuer_url}")
        made = sps("deploy", "pw", *image, *identity, "--ui-audience=tpus", *place)
        assert f"its page is at {URL}" in made.stderr
        pod = ready_page(namespace)

        shown = {"Authorization": f"Bearer {issuer.signed(email_verified=True)}"}
        with asked(pod, "/api/stream", shown) as events:
            changes = next(
                found
                for line in events
                if line.startswith(b"data: ")
                and (found := json.loads(line[6:])).get("slices", {}).get("set")
            )
        [row] = changes["slices"]["set"].values()
        assert row["instance_type"] == KIND
        with asked(pod, "/api/actions", shown) as answer:
            assert json.load(answer) == {"csrf_token": None, "user": "ada@example.org"}
        # The API server knows nothing of it: its pod has no token.
        assert pod["spec"]["automountServiceAccountToken"] is False

        other = {"Authorization": f"Bearer {issuer.signed(aud='other')}"}
        assert status_of(pod, "/", {}) == 401
        assert status_of(pod, "/", other) == 401
        assert status_of(pod, "/api/actions/cordon", shown, b"{}") == 403

        # Another audience is another page, and the service goes on.
        [jobset] = namespace.items("jobset.x-k8s.io/v1alpha2/jobsets")
        words = ("upgrade", "pw", *identity, "--ui-audience=other", *place)
        assert sps_json(*words)["changed"] is True
        pod = ready_page(namespace, other_than=pod["metadata"]["uid"])
        assert status_of(pod, "/", shown) == 401
        with asked(pod, "/", other) as answer:
            assert answer.status == 200
        assert sps_json(*words)["changed"] is False
        assert sps_json("upgrade", "pw", *place)["changed"] is False
        [now] = namespace.items("jobset.x-k8s.io/v1alpha2/jobsets")
        assert now["metadata"]["uid"] == jobset["metadata"]["uid"]

        assert sps("upgrade", "pw", "--no-ui", *place).stdout == "pw has no page now\n"
        assert parts_of(namespace) == set()
        assert sps_json(*words)["changed"] is True
        assert parts_of(namespace) == set(PARTS)

    assert sps_json("undeploy", "pw", *place)["deleted"]
    assert parts_of(namespace) == set()
