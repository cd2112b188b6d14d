"""Waits until the API server knows what a user may do: it learns of new roles a moment later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tenacity

from shared_pathways_service.testing.testbed.api import WAIT_S, Api
from shared_pathways_service.testing.testbed.errors import TestbedError

__all__ = ["wait_for_rules"]

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_PAUSE_S = 0.05


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
    is_allowed = tenacity.Retrying(
        retry=tenacity.retry_if_result(lambda allowed: not allowed),
        wait=tenacity.wait_fixed(_PAUSE_S),
        stop=tenacity.stop_after_delay(WAIT_S),
    )
    try:
        is_allowed(lambda: bool(api.create(_REVIEWS, review)["status"]["allowed"]))
    except tenacity.RetryError as error:
        raise TestbedError(
            f"the rules of {user} in {namespace} are not in force within {WAIT_S:.0f} s"
        ) from error


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
