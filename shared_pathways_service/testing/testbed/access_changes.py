"""Waits until the API server knows of a new role or of a token's end: it does so a while later."""

from __future__ import annotations

import http
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tenacity

from shared_pathways_service.testing.testbed.api import WAIT_S, Api
from shared_pathways_service.testing.testbed.errors import ApiRefused, TestbedError

__all__ = ["wait_for_end_of_token", "wait_for_rules"]

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_PAUSE_S = 0.05
_PAUSE_FOR_TOKEN_S = 0.2


def wait_for_rules(api: Api, namespace: str, user: str, rules: Sequence[Mapping[str, Any]]) -> None:
    """Waits until rules of a Role that is bound to a user are in force.

    Args:
      api: The API server, as the administrator.
      namespace: That of the Role.
      user: The user.
      rules: The rules of the Role. They come into force together, so the first one tells.

    Raises:
      TestbedError: They were not in time.
    """
    if not rules:
        return
    review = {"spec": {"user": user, "resourceAttributes": _access(namespace, rules[0])}}
    _wait_for(
        f"the rules of {user} in {namespace} are not in force",
        _PAUSE_S,
        lambda: bool(api.create(_REVIEWS, review)["status"]["allowed"]),
    )


def wait_for_end_of_token(api: Api) -> None:
    """Waits until the API server refuses a token that was revoked.

    It believes an accepted token for ten seconds (`TokenSuccessCacheTTL` in kube-apiserver's
    `options/authentication.go`), and has no setting for that.

    Args:
      api: The API server, asked with that token.

    Raises:
      TestbedError: It does not in time.
    """

    def is_refused() -> bool:
        try:
            api.get("/api")
        except ApiRefused as error:
            return error.status == http.HTTPStatus.UNAUTHORIZED
        return False

    _wait_for("a token that was revoked is not refused", _PAUSE_FOR_TOKEN_S, is_refused)


def _wait_for(lacking: str, pause_s: float, is_so: Callable[[], bool]) -> None:
    until_so = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda so: not so),
        wait=tenacity.wait_fixed(pause_s),
        stop=tenacity.stop_after_delay(WAIT_S),
    )
    try:
        until_so(is_so)
    except tenacity.RetryError as error:
        raise TestbedError(f"{lacking} within {WAIT_S:.0f} s") from error


def _access(namespace: str, rule: Mapping[str, Any]) -> dict[str, str]:
    """Returns one access that a rule permits."""
    resource, _, part = str(rule["resources"][0]).partition("/")
    access = {
        "namespace": namespace,
        "group": str(rule["apiGroups"][0]),
        "resource": resource,
        "verb": str(rule["verbs"][0]),
    }
    if part:
        access["subresource"] = part
    if names := rule.get("resourceNames"):
        access["name"] = str(names[0])
    return access
