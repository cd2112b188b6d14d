"""What is relied on of Google's two endpoints: the stand-in must do it as the real ones do.

The real ones are asked when SPS_GKE_CLUSTER names a cluster (PROJECT/REGION/NAME) that the
Application Default Credentials may see.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.testing.google import FakeCluster
from tests.kube.certificates import Authority

Place = tuple[str, str, str, str]


@pytest.fixture(params=["fake", "real"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """The Kubernetes Engine API's URL, and project, region and name of a cluster there."""
    if request.param == "real":
        named = os.environ.get("SPS_GKE_CLUSTER", "")
        if not named:
            pytest.skip("SPS_GKE_CLUSTER names no cluster")
        project, region, name = named.split("/")
        yield "https://container.googleapis.com", project, region, name
        return
    known = FakeCluster(
        name="c",
        project="p",
        region="r",
        authority=Authority("cluster").certificate,
        dns_endpoint="gke-0.r.gke.goog",
        public_endpoint="192.0.2.1",
        private_endpoint="10.0.0.2",
    )
    with request.getfixturevalue("google")([known]) as fake:
        yield fake.url, "p", "r", "c"


async def get(url: str, authorization: str) -> tuple[int, dict[str, Any]]:
    headers = {"Authorization": authorization}
    timeout = aiohttp.ClientTimeout(total=60)
    async with (
        aiohttp.ClientSession(trust_env=True, timeout=timeout) as session,
        session.get(url, headers=headers) as response,
    ):
        return response.status, await response.json()


async def get_as_user(url: str) -> tuple[int, dict[str, Any]]:
    return await get(url, await GoogleUser().tokens.header())


def test_tokens_are_bearer_tokens(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    header = asyncio.run(GoogleUser().tokens.header())
    assert header.startswith("Bearer ")
    assert len(header) > len("Bearer ") + 20
    assert header not in caplog.text


def test_tokens_have_an_expiry(place: Place) -> None:
    async def work() -> None:
        source = GoogleUser().tokens
        await source.header()
        assert source._token is not None
        left_s = (source._token.expires_at or 0) - time.time()
        assert 60 < left_s <= 12 * 3600

    asyncio.run(work())


def test_clusters_get(place: Place) -> None:
    api, project, region, name = place
    url = f"{api}/v1/projects/{project}/locations/{region}/clusters/{name}"
    status, found = asyncio.run(get_as_user(url))
    assert status == 200
    assert (found["name"], found["location"]) == (name, region)
    assert found["status"] == "RUNNING"
    authority = base64.b64decode(found["masterAuth"]["clusterCaCertificate"])
    assert authority.startswith(b"-----BEGIN CERTIFICATE-----")
    assert found["endpoint"]
    endpoints = found["controlPlaneEndpointsConfig"]
    assert endpoints["dnsEndpointConfig"]["endpoint"].endswith(".gke.goog")
    assert isinstance(endpoints["dnsEndpointConfig"].get("allowExternalTraffic", False), bool)
    addresses = endpoints["ipEndpointsConfig"]
    assert addresses.get("publicEndpoint") or addresses.get("privateEndpoint")


def test_clusters_list_of_all_locations(place: Place) -> None:
    api, project, region, name = place
    status, found = asyncio.run(get_as_user(f"{api}/v1/projects/{project}/locations/-/clusters"))
    assert status == 200
    assert (name, region) in {(c["name"], c["location"]) for c in found["clusters"]}


def test_unknown_cluster(place: Place) -> None:
    api, project, region, _ = place
    url = f"{api}/v1/projects/{project}/locations/{region}/clusters/no-such-cluster-4711"
    status, found = asyncio.run(get_as_user(url))
    assert status == 404
    assert (found["error"]["code"], found["error"]["status"]) == (404, "NOT_FOUND")
    assert "no-such-cluster-4711" in found["error"]["message"]


def test_token_that_is_not_good(place: Place) -> None:
    api, project, region, name = place
    url = f"{api}/v1/projects/{project}/locations/{region}/clusters/{name}"
    status, found = asyncio.run(get(url, "Bearer nonsense"))
    assert status == 401
    assert found["error"]["status"] == "UNAUTHENTICATED"
