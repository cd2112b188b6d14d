"""Verifies the users of tenants by the pods of their proxies.

A proxy shows a token of its pod's service account, which the kubelet issued for this pod and this
service. The API server says to which pod it belongs (TokenReview). The pod names the user who
created it or its Job: the cluster's admission policies let it name no other user
(`manifests.verified_users.user_policies`).
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import grpc

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.validation import check_text
from shared_pathways_service.errors import AccessDenied, ServiceNotReady, SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.names import (
    ANNOTATION_VERIFIED_TEAM,
    ANNOTATION_VERIFIED_USER,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.scheduling.book.messages import TenantAsked
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded

__all__ = ["UserVerifier"]

T = TypeVar("T")

#: Names in a TokenReview for a token that is bound to a pod.
_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_ACCOUNT = "system:serviceaccount:{}:"
_SIZE_LIMIT = 16_384


class UserVerifier:
    """Replaces the user and team that a proxy states by those that the API server vouches for.

    Args:
      api: The API server, as an account that may create TokenReviews and read pods.
      namespace: The namespace of the service, and of all proxies.
      audience: The audience of the tokens.
      known: Returns the request of a tenant that was verified before, by name and incarnation.
      patience_s: Seconds for the API server to check a token, in several tries.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        audience: str,
        known: Callable[[str, str], TenantRequest | None],
        *,
        patience_s: float,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._audience = audience
        self._known = known
        self._patience_s = patience_s

    async def verified(self, asked: TenantAsked, token: str) -> TenantAsked:
        """Returns a proxy's request with its verified user and team.

        While the API server does not answer, a tenant that is known goes on as the user that it
        was, and others are asked to try again.

        Raises:
          AccessDenied: The token is missing, or not a proxy's; or its pod names no user.
          InvalidRequestError: The user's or team's name is not a valid text.
          StreamEnded: The proxy may try again.
        """
        try:
            annotations = await self._annotations(asked, token)
        except _Unanswered as unanswered:
            known = self._known_request(asked)
            if known is None:
                not_now = ServiceNotReady(
                    f"the user of {asked.request.name} cannot be verified now: {unanswered}"
                )
                raise StreamEnded(not_now, grpc.StatusCode.UNAVAILABLE) from unanswered
            glog("W", f"{asked.request.name} is not verified again: {unanswered}")
            user, team = known.user, known.team
        else:
            user = check_text("user", str(annotations.get(ANNOTATION_VERIFIED_USER) or ""))
            team = check_text("team", str(annotations.get(ANNOTATION_VERIFIED_TEAM) or ""))
            if not user:
                raise _denied(
                    "its pod names no user", "connect() of this release creates such a pod"
                )
        return dataclasses.replace(
            asked, request=dataclasses.replace(asked.request, user=user, team=team)
        )

    async def _annotations(self, asked: TenantAsked, token: str) -> Mapping[str, Any]:
        """Returns the annotations of the pod to which a token belongs."""
        if not token:
            raise _denied(
                "it shows no token of its pod", "connect() of this release mounts one in the pod"
            )
        if len(token) > _SIZE_LIMIT or not token.isascii() or token.count(".") != 2:
            raise self._invalid(asked, "its token is not valid: it has no such form")
        status = await self._checked(token)
        user = status.get("user") or {}
        extra = user.get("extra") or {}
        names = [(extra.get(key) or [""])[0] for key in (_POD_NAME, _POD_UID)]
        if not status.get("authenticated") or self._audience not in (status.get("audiences") or ()):
            raise self._invalid(
                asked, f"its token is not valid: {status.get('error') or 'wrong audience'}"
            )
        account = str(user.get("username") or "")
        if not account.startswith(_ACCOUNT.format(self._namespace)) or not all(names):
            raise _denied(f"its token is not of a pod in namespace {self._namespace}")
        name, uid = names
        pod = await self._answer(
            self._api.find(self._pod_path(name), timeout_s=timeouts.TOKEN_REVIEW.s)
        )
        if pod is None or pod["metadata"]["uid"] != uid:
            raise self._invalid(asked, f"its pod {name} does not exist any more")
        found: Mapping[str, Any] = pod["metadata"].get("annotations") or {}
        return found

    async def _checked(self, token: str) -> Mapping[str, Any]:
        """Returns the review of a token.

        Its error may be the API server's own, e.g. of its storage: the token was not checked then,
        and only the text, which differs by release, says so. So each is taken for one at first.
        """
        clock = asyncio.get_running_loop().time
        ends, backoff = clock() + self._patience_s, Backoff()
        while True:
            status = await self._review(token)
            pause_s = backoff.next_pause_s()
            was_checked = status.get("authenticated") or not status.get("error")
            if was_checked or clock() + pause_s > ends:
                return status
            await asyncio.sleep(pause_s)

    async def _review(self, token: str) -> Mapping[str, Any]:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        path = collection("tokenreviews")
        review = await self._answer(
            self._api.request("POST", path, body=body, timeout_s=timeouts.TOKEN_REVIEW.s)
        )
        status: Mapping[str, Any] = review.get("status") or {}
        return status

    def _invalid(self, asked: TenantAsked, why: str) -> Exception:
        """Returns the refusal of a token, which is not final for a proxy that was verified before.

        Its token may have expired while the API server was away, and is then replaced.
        """
        error = _denied(why)
        if asked.running or asked.claims or self._known_request(asked):
            return StreamEnded(error, grpc.StatusCode.UNAVAILABLE)
        return error

    def _known_request(self, asked: TenantAsked) -> TenantRequest | None:
        return self._known(asked.request.name, asked.incarnation)

    def _pod_path(self, name: str) -> str:
        return item("pods", self._namespace, name)

    @staticmethod
    async def _answer(answer: Awaitable[T]) -> T:
        try:
            return await answer
        except SharedPathwaysError as error:
            # Also a refusal: this server's own permissions are no fault of the tenant's.
            raise _Unanswered(str(error)) from error


class _Unanswered(Exception):  # noqa: N818 - an event
    """The API server did not answer."""


def _denied(why: str, hint: str = "") -> AccessDenied:
    return AccessDenied(
        f"this service verifies users, and the proxy does not prove its user: {why}",
        verb="connect",
        resource="resource manager",
        hint=hint,
    )
