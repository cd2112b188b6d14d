"""Evictions, against an API server that is scripted: what is tried again, and what is final."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from shared_pathways_service.kube import drain
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError

POD = {"metadata": {"namespace": "team-a", "name": "p", "uid": "u"}}
#: What the API server says while a disruption budget allows no eviction.
PROTECTED = ApiError("cannot evict", status=429, reason="TooManyRequests")


class ScriptedApi:
    """Answers each eviction with the next of some errors, and then with success."""

    def __init__(self, answers: Sequence[ApiError]) -> None:
        self._answers = list(answers)
        self.asked = 0

    async def get(self, _path: str, **_keywords: Any) -> dict[str, Any]:
        return {"items": [POD]}

    async def request(self, _method: str, _path: str, **_keywords: Any) -> dict[str, Any]:
        self.asked += 1
        if self._answers:
            raise self._answers.pop(0)
        return {}


def evict(*answers: ApiError) -> int:
    """Returns how many requests it took."""
    api = ScriptedApi(answers)
    asyncio.run(drain.evict_pods(cast("KubeApi", api), ["node"]))
    return api.asked


def test_a_protected_pod_is_tried_again() -> None:
    assert evict(PROTECTED, PROTECTED) == 3


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (409, "Conflict")])
def test_a_pod_that_is_gone_or_replaced_needs_no_eviction(status: int, reason: str) -> None:
    assert evict(ApiError("gone", status=status, reason=reason)) == 1


def test_other_refusals_are_raised() -> None:
    with pytest.raises(ApiError) as caught:
        evict(PROTECTED, ApiError("broken", status=500, reason="InternalError"))
    assert caught.value.status == 500
