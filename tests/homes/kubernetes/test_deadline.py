"""A Job's deadline on a machine that sleeps, and when there is nothing left to move it for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest

from harness.deadlines import deadline
from shared_pathways_service.homes.kubernetes.deadline import DeadlineKeeper
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from tests.kube.nowhere import NowhereApi


class Patched(NowhereApi):
    """Takes patches of a Job, or refuses them with the errors that are given."""

    def __init__(self, *errors: ApiError) -> None:
        super().__init__()
        self._errors = list(errors)
        self.patches: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()

    async def patch(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float | None = None
    ) -> dict[str, Any]:
        self.patches.put_nowait(body)
        if self._errors:
            raise self._errors.pop(0)
        return {}


def keep(api: KubeApi) -> DeadlineKeeper:
    return DeadlineKeeper(api, "/jobs/j", uid="u", ahead_s=0.5, max_lifetime_s=None)


def refusal(status: int, reason: str) -> ApiError:
    return ApiError("no", status=status, reason=reason)


def test_time_that_the_machine_slept_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        api = Patched()
        keeper = keep(api)
        slept = time.time() + 1000
        monkeypatch.setattr(time, "time", lambda: slept)
        body = await asyncio.wait_for(api.patches.get(), deadline(60.0))
        assert body["metadata"] == {"uid": "u"}
        assert body["spec"]["activeDeadlineSeconds"] > 1000
        await keeper.close()

    asyncio.run(work())


def test_it_is_extended_at_once_when_asked() -> None:
    async def work() -> None:
        api = Patched(refusal(503, "ServiceUnavailable"))
        keeper = DeadlineKeeper(api, "/jobs/j", uid="u", ahead_s=36_000, max_lifetime_s=None)
        keeper.extend_now()
        # Refused, and tried again long before the next regular time, in 2 hours.
        for _ in range(2):
            await asyncio.wait_for(api.patches.get(), deadline(60.0))
        await keeper.close()

    asyncio.run(work())


def test_only_the_jobs_end_ends_it() -> None:
    async def work() -> None:
        passing = refusal(403, "Forbidden"), refusal(409, "Conflict"), refusal(404, "")
        api = Patched(*passing, refusal(404, "NotFound"))
        keeper = keep(api)
        for _ in range(4):
            await asyncio.wait_for(api.patches.get(), deadline(60.0))
        await asyncio.wait_for(asyncio.wait({keeper._task}), deadline(60.0))
        assert api.patches.empty()
        await keeper.close()

    asyncio.run(work())
