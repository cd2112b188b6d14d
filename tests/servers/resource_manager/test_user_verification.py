"""Whom a resource manager believes: an API server that answers, refuses, or is away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import grpc
import pytest

from harness.session_requests import tenant_request
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.scheduling.book.messages import Claim, TenantAsked
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded
from shared_pathways_service.servers.resource_manager.user_verification import UserVerifier

AUDIENCE, TOKEN = "pw.ns.sps.dev", "a.b.c"
USER, TEAM = "sps.dev/verified-user", "sps.dev/verified-team"
REQUEST = tenant_request("t", "tpuv6e:2x2", user="bob", team="vision")
ASKED = TenantAsked(request=REQUEST, incarnation="i", pid=1)
CLAIM = Claim(virtual_index=0, slice_id="slice-0", generation=1)


class Server:
    """An API server that knows one token and one pod."""

    def __init__(self) -> None:
        self.away = False
        self.account = "system:serviceaccount:ns:default"
        self.audiences = [AUDIENCE]
        self.error = ""
        self.reviews = 0
        #: Reviews after which there is an error no longer.
        self.recovers_after: int | None = None
        self.pod: dict[str, Any] | None = {
            "metadata": {"uid": "u", "annotations": {USER: "ada", TEAM: "text"}}
        }

    async def request(
        self, _method: str, path: str, *, body: Mapping[str, Any], **_: Any
    ) -> dict[str, Any]:
        self._answer()
        assert path == "/apis/authentication.k8s.io/v1/tokenreviews"
        assert body["spec"] == {"token": TOKEN, "audiences": [AUDIENCE]}
        self.reviews += 1
        has_recovered = self.recovers_after is not None and self.reviews > self.recovers_after
        if self.error and not has_recovered:
            return {"status": {"error": self.error}}
        names = {"pod-name": ["p"], "pod-uid": ["u"]}
        extra = {f"authentication.kubernetes.io/{name}": value for name, value in names.items()}
        user = {"username": self.account, "extra": extra}
        return {"status": {"authenticated": True, "audiences": self.audiences, "user": user}}

    async def find(self, path: str, **_: Any) -> dict[str, Any] | None:
        self._answer()
        assert path == "/api/v1/namespaces/ns/pods/p"
        return self.pod

    def _answer(self) -> None:
        if self.away:
            raise ApiUnreachable("it does not answer")


@pytest.fixture
def server() -> Server:
    return Server()


def verified(
    server: Server,
    asked: TenantAsked = ASKED,
    *,
    token: str = TOKEN,
    known: TenantRequest | None = None,
    patience_s: float = 0.0,
) -> tuple[str, str]:
    """Returns the user and team of a verified request."""

    def of(tenant: str, incarnation: str) -> TenantRequest | None:
        return known if (tenant, incarnation) == ("t", "i") else None

    api = cast("KubeApi", server)
    verifier = UserVerifier(api, "ns", AUDIENCE, known=of, patience_s=patience_s)
    request = asyncio.run(verifier.verified(asked, token)).request
    return request.user, request.team


def test_user_and_team_are_those_of_the_pod(server: Server) -> None:
    assert verified(server) == ("ada", "text")
    assert server.pod
    del server.pod["metadata"]["annotations"][TEAM]
    assert verified(server) == ("ada", "")


def test_a_proxy_without_proof_is_refused(server: Server) -> None:
    with pytest.raises(AccessDenied, match="shows no token of its pod"):
        verified(server, token="")
    for malformed in ("abc", "a.b.\xe4", "a.b." + "c" * 20_000):
        with pytest.raises(AccessDenied, match="no such form"):
            verified(server, token=malformed)
    assert server.pod
    server.pod["metadata"]["annotations"] = {TEAM: "text"}
    with pytest.raises(AccessDenied, match="names no user"):
        verified(server)
    server.pod["metadata"]["annotations"] = {USER: "a\nb"}
    with pytest.raises(InvalidRequestError, match="user"):
        verified(server)


def test_a_token_of_another_pod_or_for_another_service_is_refused(server: Server) -> None:
    server.account = "system:serviceaccount:elsewhere:default"
    with pytest.raises(AccessDenied, match="not of a pod in namespace ns"):
        verified(server)
    server.account = "ada"
    with pytest.raises(AccessDenied, match="not of a pod in namespace ns"):
        verified(server)
    server.account, server.audiences = "system:serviceaccount:ns:default", ["https://kubernetes"]
    with pytest.raises(AccessDenied, match="wrong audience"):
        verified(server)
    server.audiences = [AUDIENCE]
    for pod in (None, {"metadata": {"uid": "other", "annotations": {USER: "ada"}}}):
        server.pod = pod
        with pytest.raises(AccessDenied, match="does not exist"):
            verified(server)


def test_an_expired_token_is_final_for_a_new_proxy_only(server: Server) -> None:
    """The kubelet could not replace it while the API server was away, and will soon."""
    server.error = "token has expired"
    with pytest.raises(AccessDenied, match="expired"):
        verified(server)
    for running in (
        TenantAsked(request=REQUEST, incarnation="i", pid=1, running=True),
        TenantAsked(request=REQUEST, incarnation="i", pid=1, claims=(CLAIM,)),
    ):
        with pytest.raises(StreamEnded, match="expired") as ended:
            verified(server, running)
        assert ended.value.code is grpc.StatusCode.UNAVAILABLE
    # In the queue it was verified as well.
    with pytest.raises(StreamEnded, match="expired"):
        verified(server, known=REQUEST)


def test_a_token_that_could_not_be_checked_is_checked_again(server: Server) -> None:
    server.error, server.recovers_after = "etcdserver: leader changed", 2
    assert verified(server, patience_s=60.0) == ("ada", "text")
    assert server.reviews == 3
    server.reviews = 0
    with pytest.raises(AccessDenied, match="leader changed"):
        verified(server)
    assert server.reviews == 1
    # What is known not to be valid is refused at once.
    server.error, server.audiences = "", ["https://kubernetes"]
    with pytest.raises(AccessDenied, match="wrong audience"):
        verified(server, patience_s=60.0)
    assert server.reviews == 2


def test_without_the_api_server_only_known_tenants_go_on(server: Server) -> None:
    server.away = True
    known = tenant_request("t", "tpuv6e:2x2", user="ada", team="text")
    assert verified(server, known=known) == ("ada", "text")
    with pytest.raises(StreamEnded, match=r"cannot be verified now: it does not answer") as ended:
        verified(server)
    assert ended.value.code is grpc.StatusCode.UNAVAILABLE
    other = TenantAsked(request=REQUEST, incarnation="another", pid=1)
    with pytest.raises(StreamEnded):
        verified(server, other, known=known)
