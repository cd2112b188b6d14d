"""Asks the API server for this user's permissions, and checks that they suffice."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.api.checks import Check
from shared_pathways_service.cluster_state import preflight_checks
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection
from shared_pathways_service.manifests.permissions import (
    Permission,
    access_review,
    evaluate,
    is_allowed,
    needed,
    rules_review,
)

__all__ = ["check_permissions", "missing_permissions", "review_rules"]

Object = Mapping[str, Any]


async def review_rules(api: KubeApi, namespace: str) -> Object:
    """Returns all rules that the API server has for this user in a namespace."""
    path = collection("selfsubjectrulesreviews")
    return await api.request("POST", path, body=rules_review(namespace))


async def check_permissions(
    api: KubeApi, namespace: str, review: Object | BaseException, *, ours: bool
) -> Check:
    """Checks every permission that a connection needs; the result lists all missing ones.

    Args:
      api: The server.
      namespace: Of the service.
      review: The answer to `review_rules`; if it is an error, each permission is checked alone.
      ours: Whether the service runs this project's images, which need more permissions.
    """
    wanted = needed(ours=ours)
    try:
        missing = await missing_permissions(api, namespace, review, wanted)
    except SharedPathwaysError as error:
        return Check.unknown("permissions", f"cannot be asked for: {error}")
    return preflight_checks.permissions_check(wanted, missing, namespace)


async def missing_permissions(
    api: KubeApi,
    namespace: str,
    review: Object | BaseException,
    wanted: Sequence[Permission],
) -> list[Permission]:
    """Returns which of these permissions this user does not have; arguments as above.

    Raises:
      SharedPathwaysError: The API server does not say so.
    """
    verdict = evaluate(review if isinstance(review, Mapping) else {}, wanted)
    missing = list(verdict.missing)
    if verdict.unknown:
        answers = await asyncio.gather(
            *(_ask(api, namespace, one) for one in verdict.unknown), return_exceptions=True
        )
        errors = [answer for answer in answers if isinstance(answer, SharedPathwaysError)]
        if len(errors) == len(answers):
            raise errors[0]
        pairs = zip(verdict.unknown, answers, strict=True)
        missing += [one for one, answer in pairs if _is_refused(answer)]
    return missing


async def _ask(api: KubeApi, namespace: str, permission: Permission) -> Object:
    path = collection("selfsubjectaccessreviews")
    return await api.request("POST", path, body=access_review(permission, namespace))


def _is_refused(answer: Object | BaseException) -> bool:
    return isinstance(answer, Mapping) and not is_allowed(answer)
