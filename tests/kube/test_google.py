"""From a GKE cluster's name to its API server: google-auth and we are real, Google is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.google_tokens import GoogleUser
from shared_pathways_service.testing.google import FakeCluster, FakeGoogle
from tests.kube.control_plane import ControlPlane
from tests.kube.kubeconfigs import who

MakeGoogle = Callable[..., FakeGoogle]
CHOICE = ClusterChoice(cluster="my-cluster", project="my-project", region="us-central2")
#: Refuses at once.
CLOSED = "127.0.0.1:1"


def cluster(plane: ControlPlane, **more: Any) -> FakeCluster:
    return FakeCluster(
        name="my-cluster",
        project="my-project",
        region="us-central2",
        authority=plane.authority,
        **more,
    )


def address(plane: ControlPlane) -> str:
    return plane.url.removeprefix("https://")


def test_cluster_by_its_name(control_plane: ControlPlane, google: MakeGoogle) -> None:
    known = cluster(control_plane, public_endpoint=address(control_plane))
    with google([known], new_token=lambda: control_plane.alice) as fake:
        access = asyncio.run(resolve(CHOICE))
        assert (access.server, access.project) == (control_plane.url, "my-project")
        assert who(access) == "alice"
        looked_up = "/v1/projects/my-project/locations/us-central2/clusters/my-cluster"
        # One token and one look-up, for the cluster's API server too.
        assert fake.requests == [("POST", "/token"), ("GET", looked_up)]


@pytest.mark.parametrize(
    ("dns_is_open", "public", "private"), [(True, "", "up"), (False, CLOSED, "up")]
)
def test_the_endpoint_that_answers_is_taken(
    control_plane: ControlPlane, google: MakeGoogle, dns_is_open: bool, public: str, private: str
) -> None:
    known = cluster(
        control_plane,
        # Its certificate is not signed by an authority that the system knows.
        dns_endpoint=address(control_plane).replace("127.0.0.1", "localhost"),
        dns_is_open=dns_is_open,
        public_endpoint=public,
        private_endpoint=address(control_plane),
    )
    with google([known], new_token=lambda: control_plane.alice):
        assert asyncio.run(resolve(CHOICE)).server == control_plane.url


def test_no_endpoint_answers(control_plane: ControlPlane, google: MakeGoogle) -> None:
    with google([cluster(control_plane, public_endpoint=CLOSED)]):
        with pytest.raises(ApiUnreachable) as caught:
            asyncio.run(resolve(CHOICE))
        assert CLOSED in caught.value.cause
        assert caught.value.hint


def test_unknown_cluster_names_those_that_there_are(
    control_plane: ControlPlane, google: MakeGoogle
) -> None:
    choice = ClusterChoice(cluster="my-cluster", project="my-project", region="us-east5")
    with google([cluster(control_plane)]):
        with pytest.raises(InvalidRequestError, match="my-cluster in us-central2"):
            asyncio.run(resolve(choice))
        with pytest.raises(InvalidRequestError, match="there are: none"):
            asyncio.run(resolve(ClusterChoice(cluster="c", project="p", region="r")))


def test_who_may_not_look_it_up(google: MakeGoogle) -> None:
    with google(may_look_up=False):
        with pytest.raises(AccessDenied) as caught:
            asyncio.run(resolve(CHOICE))
        assert "roles/container.clusterViewer" in caught.value.rule
        assert 'Required "container.clusters.get"' in caught.value.message


def test_no_credentials(
    google: MakeGoogle, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with google() as fake:
        # A key that Google does not know.
        with FakeGoogle() as other:
            other.write_credentials(own_directories / "other.json")
            text = (own_directories / "other.json").read_text().replace(other.url, fake.url)
        (own_directories / "credentials.json").write_text(text)
        with pytest.raises(AccessDenied) as caught:
            asyncio.run(resolve(CHOICE))
        assert "Invalid JWT Signature" in caught.value.message
        assert "application-default login" in caught.value.hint
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(own_directories / "missing"))
    with pytest.raises(AccessDenied, match="missing"):
        asyncio.run(resolve(CHOICE))


def test_google_does_not_answer(google: MakeGoogle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.05")
    with google():
        pass
    # Whichever of the two it is that takes the time.
    with pytest.raises(ApiUnreachable, match=r"token from Google|cannot get /v1/projects"):
        asyncio.run(resolve(CHOICE))


def test_google_is_not_there_for_a_moment(
    google: MakeGoogle, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = HTTPStatus.SERVICE_UNAVAILABLE, {"error": "try later"}
    monkeypatch.setattr(FakeGoogle, "_token", lambda *_: busy)

    async def token() -> str:
        return await GoogleUser().tokens.header()

    with google(), pytest.raises(ApiUnreachable, match="try later") as caught:
        asyncio.run(token())
    assert not caught.value.is_final


def test_token_that_expires_is_replaced_in_time(
    control_plane: ControlPlane, google: MakeGoogle
) -> None:
    known = cluster(control_plane, public_endpoint=address(control_plane))
    tokens = iter(["first", *[control_plane.admin] * 9])

    async def work(fake: FakeGoogle) -> None:
        access = await resolve(CHOICE)
        # The first one was good for Google and is not for the cluster.
        async with KubeApi(access) as api:
            await api.get(paths.collection("nodes"))
            given = fake.requests.count(("POST", "/token"))
            fake.revoke_tokens()
            await api.get(paths.collection("nodes"))
            assert fake.requests.count(("POST", "/token")) == given

    with google([known], new_token=lambda: next(tokens)) as fake:
        asyncio.run(work(fake))
