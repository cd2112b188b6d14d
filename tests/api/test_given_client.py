"""api_client=: what is taken, and what a wrong value is told."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from kubernetes.client import ApiClient, Configuration, CoreV1Api

from harness.session_requests import session_request
from shared_pathways_service.api.given_client import server_of_client
from shared_pathways_service.errors import InvalidRequestError

HOST = "https://api.test:6443"


@pytest.fixture
def configuration() -> Configuration:
    return Configuration(host=HOST)


def test_both_kinds_name_the_cluster(configuration: Configuration) -> None:
    for given in (configuration, ApiClient(configuration)):
        request = session_request(api_client=given)
        assert request.service.home == "kubernetes"
        assert request.service.server == HOST
        assert request.client.api_client is given
        assert "api_client" not in str(request.to_json())
        assert type(request).from_json(request.to_json()).service == request.service


@pytest.mark.parametrize(
    ("host", "server"),
    [
        (HOST + "/", HOST),
        (HOST + "/k8s/clusters/c-1/", HOST + "/k8s/clusters/c-1"),
        ("http://localhost:8001", "http://localhost:8001"),
        ("https://[::1]:6443", "https://[::1]:6443"),
    ],
)
def test_the_server(host: str, server: str) -> None:
    assert server_of_client(Configuration(host=host)) == server


@pytest.mark.parametrize("other", ["cluster", "context"])
def test_only_one_names_the_cluster(configuration: Configuration, other: str) -> None:
    more: dict[str, Any] = {"project": "p-1", "region": "r"} if other == "cluster" else {}
    with pytest.raises(InvalidRequestError) as caught:
        session_request(api_client=configuration, **{other: "x"}, **more)
    assert (caught.value.field, caught.value.value) == (other, "x")
    assert "api_client" in str(caught.value)
    for field in ("project", "region"):
        with pytest.raises(InvalidRequestError) as caught:
            session_request(api_client=configuration, **{field: "p-1"})
        assert caught.value.field == field


class Lookalike:
    host = HOST
    configuration = None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (HOST, "str"),
        (f"token-{HOST}".encode(), "bytes"),
        ({"token": "hunter2"}, "dict"),
        (7, "int"),
        (False, "bool"),
        (Configuration, "type"),
        (Lookalike(), "tests.api.test_given_client.Lookalike"),
    ],
)
def test_another_value_is_named_by_its_type(value: object, kind: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        session_request(api_client=value)
    assert (caught.value.field, caught.value.value) == ("api_client", kind)
    said = str(caught.value.to_json())
    assert f"not an object of type {kind}" in said
    assert "kubernetes.client.ApiClient" in said
    assert "hunter2" not in said


def test_an_api_of_the_client_has_it(configuration: Configuration) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        session_request(api_client=CoreV1Api(ApiClient(configuration)))
    assert caught.value.hint == "pass its attribute api_client"


def test_the_package_is_not_imported(
    configuration: Configuration, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "kubernetes"]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InvalidRequestError, match="api_client is not valid"):
        session_request(api_client=configuration)
    assert "kubernetes" not in sys.modules


def test_a_new_client_of_the_same_server_is_the_same_request(configuration: Configuration) -> None:
    started = session_request(api_client=configuration)
    again = session_request(api_client=ApiClient(Configuration(host=HOST)))
    other = session_request(api_client=Configuration(host="https://other.test"))
    assert again.matches(started)
    assert not other.matches(started)
    assert not session_request(context="x").matches(started)
