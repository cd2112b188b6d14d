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
from tests.web.streams import rows_until

URL = "https://tpus.example.org/"
HOST = {"Host": "tpus.example.org"}
DEPLOYMENTS = "apps/v1/deployments"
PARTS = (DEPLOYMENTS, "services", "serviceaccounts")


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its operator."""
    namespace.add_nodes({KIND: 1}, cpu_nodes=1)
    for name, value in rendered_user(namespace, "operator", pages=True).items():
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


def address(pod: Mapping[str, Any]) -> str:
    return f"http://{pod['status']['podIP']}:{PAGE_PORT}"


def asked(
    pod: Mapping[str, Any], path: str, headers: Mapping[str, str], data: bytes | None = None
) -> Any:
    """Asks the page as its proxy does, which passes on the name that it was asked for."""
    request = urllib.request.Request(f"{address(pod)}{path}", data, {**HOST, **headers})
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


def deployment(namespace: Namespace) -> Any:
    """Returns what the page's Deployment runs."""
    [found] = [one for one in namespace.items(DEPLOYMENTS) if one["metadata"]["name"] == "pw-ui"]
    return found["spec"], found["metadata"]["annotations"]["sps.dev/sent-spec"]


def test_a_service_shows_its_page_to_whom_a_proxy_names(
    namespace: Namespace, place: list[str], monkeypatch: pytest.MonkeyPatch
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
        rows = rows_until(
            f"{address(pod)}/api/stream", {**HOST, **shown}, lambda found: found.get("slices")
        )
        [row] = rows["slices"].values()
        assert row["instance_type"] == KIND
        with asked(pod, "/api/actions", shown) as answer:
            assert json.load(answer) == {"csrf_token": None, "user": "ada@example.org"}
        # What the API server made of its pod mounts no token for it.
        sources = [
            source
            for volume in pod["spec"]["volumes"]
            for source in (volume.get("projected") or {}).get("sources", ())
        ]
        assert not [source for source in sources if "serviceAccountToken" in source]

        other = {"Authorization": f"Bearer {issuer.signed(aud='other')}"}
        assert status_of(pod, "/", {}) == 401
        assert status_of(pod, "/", other) == 401
        assert status_of(pod, "/api/actions/cordon", shown, b"{}") == 403

        # Another audience is another page, and the service goes on.
        [jobset] = namespace.items("jobset.x-k8s.io/v1alpha2/jobsets")
        # Options that are not given stay as they are.
        words = ("upgrade", "pw", "--ui", "--ui-audience=other", *place)
        assert sps_json(*words)["changed"] is True
        pod = ready_page(namespace, other_than=pod["metadata"]["uid"])
        assert status_of(pod, "/", shown) == 401
        with asked(pod, "/", other) as answer:
            assert answer.status == 200
        assert sps_json(*words)["changed"] is False
        assert sps_json("upgrade", "pw", *place)["changed"] is False
        [now] = namespace.items("jobset.x-k8s.io/v1alpha2/jobsets")
        assert now["metadata"]["uid"] == jobset["metadata"]["uid"]

        # A deploy onto a service that exists changes nothing of its page.
        before = deployment(namespace)
        code, err = sps_failing("deploy", "pw", *image, *identity, "--ui-audience=third", *place)
        assert code == 2
        assert "already exists" in err
        assert deployment(namespace) == before

        assert sps("upgrade", "pw", "--no-ui", *place).stdout == "pw has no page now\n"
        assert parts_of(namespace) == set()
        whole = ("upgrade", "pw", *identity, "--ui-audience=other", *place)
        assert sps_json(*whole)["changed"] is True
        assert parts_of(namespace) == set(PARTS)
        # With another change the service is recreated, and its page is gone before.
        assert sps_json("upgrade", "pw", "--no-ui", "--max-restarts=3", *place)["changed"] is True
        assert parts_of(namespace) == set()
        assert sps_json(*whole)["changed"] is True
        assert parts_of(namespace) == set(PARTS)

    without_pages = rendered_user(namespace, "operator")
    # Without the rights for pages the service is deleted all the same, and what is left is named.
    with monkeypatch.context() as other_user:
        for name, value in without_pages.items():
            other_user.setenv(name, value)
        done = sps("undeploy", "pw", *place)
    assert "deployments pw-ui, services pw-ui" in done.stderr
    assert parts_of(namespace) == {DEPLOYMENTS, "services"}
    code, err = sps_failing("undeploy", "pw", *place)
    assert parts_of(namespace) == set()
    assert code == 3
    assert "pw" in err

    # A service without a page needs no such right, and nothing is said of one.
    with monkeypatch.context() as other_user:
        for name, value in without_pages.items():
            other_user.setenv(name, value)
        sps("deploy", "plain", *image, "--no-wait", *place)
        assert "page" not in sps("undeploy", "plain", *place).stderr


def test_a_page_ends_with_its_service(namespace: Namespace, place: list[str]) -> None:
    image = (f"--slices={KIND}=1", f"--server-image={OUR_SERVER_IMAGE}")
    identity = ("--ui", f"--ui-url={URL}", "--ui-identity=iap", "--ui-audience=/projects/1/x")
    sps("deploy", "pw", *image, *identity, "--no-wait", *place)
    assert parts_of(namespace) == set(PARTS)
    assert sps_json("undeploy", "pw", *place)["deleted"]
    assert parts_of(namespace) == set()
