"""Placement where the resource manager does not report it: by the log, and by other pods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.session_requests import tenant_request
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.proxy_watch import ProxyFollower
from shared_pathways_service.kube.paths import pod_log
from shared_pathways_service.manifests.names import LABEL_SESSION
from tests.cluster_state.claiming_proxies import V6, proxy, service
from tests.cluster_state.objects import Object, job
from tests.cluster_state.objects import running as running_pod
from tests.kube.nowhere import NowhereApi

KIND = V6


class SilentApi(NowhereApi):
    """Has one pod that runs and goes on running; refuses its log."""

    def __init__(self) -> None:
        super().__init__()

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        return {"metadata": {"resourceVersion": "1"}, "items": []}

    def chunks(self, path: str) -> AsyncIterator[bytes]:
        if path.endswith("/log"):
            raise AccessDenied("not you", verb="get", resource="pods/log")
        return self._changes(path)

    async def _changes(self, path: str) -> AsyncIterator[bytes]:
        if path.endswith("/pods"):
            pod = running_pod()
            pod["metadata"]["resourceVersion"] = "2"
            yield json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n"
        await asyncio.Event().wait()


def test_an_unreadable_log_is_reported() -> None:
    async def work() -> list[Event]:
        told: list[Event] = []
        warned = asyncio.Event()

        def tell(event: Event) -> None:
            told.append(event)
            if event.kind == "service.warning":
                warned.set()

        made: dict[str, Any] = job()
        made["metadata"] |= {"resourceVersion": "1", "labels": {LABEL_SESSION: "s"}}
        follower = ProxyFollower(
            SilentApi(), "n", tenant_request("j", KIND), made, tell=tell, silent_service=service()
        )
        following = asyncio.create_task(follower.run())
        await asyncio.wait_for(warned.wait(), deadline(60.0))
        assert not following.done(), "the session goes on without it"
        following.cancel()
        await asyncio.wait({following})
        return told

    told = asyncio.run(work())
    assert [event.kind for event in told] == ["proxy.serving", "service.warning"]
    assert "log" in (told[-1].reason or "")
    assert "not you" in (told[-1].reason or "")


class BusyApi(SilentApi):
    """Has a proxy that asked for its slices, and others' pods; logs more when it is let."""

    name = "p"

    def __init__(self, pods: list[Object], *, placed: str = "") -> None:
        super().__init__()
        log = ["Signaling to RM", "Transition slice 0 unplaced -> placed"]
        self.logs = {pod_log("n", placed): log}
        self.logs_read: list[str] = []
        self.pods = pods
        self.looked = asyncio.Event()
        self.placed = asyncio.Event()

    async def get(self, path: str, *, params: Any = None, **_: Any) -> dict[str, Any]:
        mine = "job-name" in (params or {}).get("labelSelector", "")
        if mine:
            self.looked.set()
        items = self.pods if mine else []
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def stream_lines(self, path: str, **_: Any) -> AsyncGenerator[str, None]:
        if path != pod_log("n", self.name):
            self.logs_read.append(path)
            for line in self.logs.get(path, ()):
                yield line
            return
        stamp = "2026-01-01T00:00:0{}.000000000Z "
        yield stamp.format(1) + "Signaling to RM pw-pathways-head-0-0.pw:29001"
        await self.placed.wait()
        yield stamp.format(2) + "Transition slice 0 unplaced -> placed"
        await asyncio.Event().wait()


async def told_of(
    api: BusyApi,
    *until: str,
    queue_timeout_s: float | None = None,
    place_on: str = "tenant.queued",
    slices: int = 1,
) -> list[Event]:
    """Follows a proxy until it told of all these kinds, in this order.

    The first of the other proxies leaves when this one is queued; it is placed on `place_on`.
    """
    told: list[Event] = []
    changed = asyncio.Event()

    def tell(event: Event) -> None:
        told.append(event)
        if event.kind == "tenant.queued":
            api.pods.pop(0)
        if event.kind == place_on:
            api.placed.set()
        changed.set()

    made: dict[str, Any] = job("eve")
    made["metadata"] |= {"resourceVersion": "1", "labels": {LABEL_SESSION: "s"}}
    tenant = tenant_request("eve", V6, queue_timeout_s=queue_timeout_s)
    follower = ProxyFollower(api, "n", tenant, made, tell=tell, silent_service=service(slices))
    following = asyncio.create_task(follower.run())
    try:
        async with asyncio.timeout(deadline(60.0)):
            while [event.kind for event in told[1:]] != list(until):
                assert [event.kind for event in told[1:]] == list(until)[: len(told[1:])]
                changed.clear()
                await changed.wait()
    finally:
        following.cancel()
        await asyncio.wait({following})
    return told[1:]


async def place_after_two_looks(api: BusyApi, following: asyncio.Task[list[Event]]) -> None:
    """Has the proxy placed once the first look at the others has come to its conclusion."""
    for _ in range(2):
        looked = asyncio.create_task(api.looked.wait())
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({looked, following}, timeout=deadline(60.0), return_when=first)
        looked.cancel()
        api.looked.clear()
    api.placed.set()
    await following


def both() -> list[Object]:
    return [proxy("ada", V6), proxy("eve", V6, at="01")]


def test_slices_that_a_running_proxy_holds_are_taken_at_once() -> None:
    [refused] = asyncio.run(told_of(BusyApi(both()), "tenant.refused"))
    assert refused.data["kind"] == "slices_taken"
    assert refused.data["holders"] == f"ada@laptop: 1 x {V6}"


def test_they_are_waited_for_in_a_queue() -> None:
    kinds = ("tenant.queued", "slice.placed", "tenant.running")
    asyncio.run(told_of(BusyApi(both()), *kinds, queue_timeout_s=60.0))


def test_the_queue_ends_when_enough_slices_are_free() -> None:
    kinds = ("tenant.queued", "tenant.dequeued", "slice.placed", "tenant.running")
    asyncio.run(told_of(BusyApi(both()), *kinds, queue_timeout_s=60.0, place_on="tenant.dequeued"))


def later() -> list[Object]:
    return [proxy("ada", V6, at="05"), proxy("eve", V6)]


def test_slices_of_a_later_proxy_are_taken_when_its_log_says_that_they_are_placed() -> None:
    [refused] = asyncio.run(told_of(BusyApi(later(), placed="ada"), "tenant.refused"))
    assert refused.data["holders"] == f"ada@laptop: 1 x {V6}"


def test_a_later_proxy_that_is_placed_is_waited_for_in_a_queue() -> None:
    kinds = ("tenant.queued", "tenant.dequeued", "slice.placed", "tenant.running")
    api = BusyApi(later(), placed="ada")
    asyncio.run(told_of(api, *kinds, queue_timeout_s=60.0, place_on="tenant.dequeued"))
    assert api.logs_read == [pod_log("n", "ada")], "once is enough"


class BriefApi(BusyApi):
    """Its first pod is gone after the first look at it."""

    async def get(self, path: str, *, params: Any = None, **_: Any) -> dict[str, Any]:
        found = await super().get(path, params=params)
        if found["items"]:
            self.pods = self.pods[-1:]
        return found


def test_a_later_proxy_that_ends_at_once_has_taken_nothing() -> None:
    async def work() -> None:
        api = BriefApi(later(), placed="ada")
        following = asyncio.create_task(told_of(api, "slice.placed", "tenant.running"))
        await place_after_two_looks(api, following)
        assert api.logs_read == [pod_log("n", "ada")]

    asyncio.run(work())


def test_an_earlier_proxy_that_waits_holds_nothing_of_what_a_placed_one_has() -> None:
    # (ada wants more than is free beside bob, who came later and is placed.)
    pods = [proxy("ada", V6, V6), proxy("bob", V6, at="01"), proxy("eve", V6, at="02")]
    api = BusyApi(pods, placed="bob")
    kinds = ("slice.placed", "tenant.running")

    async def work() -> None:
        following = asyncio.create_task(told_of(api, *kinds, slices=2))
        await place_after_two_looks(api, following)

    asyncio.run(work())
    assert pod_log("n", "bob") in api.logs_read


@pytest.mark.parametrize("queue_timeout_s", [None, 60.0])
@pytest.mark.parametrize("others", [(), ("ada",)], ids=["alone", "later"])
def test_a_slice_that_is_placed_slowly_is_not_taken(
    others: tuple[str, ...], queue_timeout_s: float | None
) -> None:
    async def work() -> None:
        api = BusyApi([*(proxy(name, V6, at="05") for name in others), proxy("eve", V6)])
        following = asyncio.create_task(
            told_of(api, "slice.placed", "tenant.running", queue_timeout_s=queue_timeout_s)
        )
        await place_after_two_looks(api, following)

    asyncio.run(work())
