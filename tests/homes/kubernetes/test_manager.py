"""The link to a resource manager whose pod is gone, or that may not be reached."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from harness.deadlines import deadline
from harness.patience import patience
from harness.processes import run_async
from shared_pathways_service.errors import (
    AccessDenied,
    CapacityError,
    ServiceNotReady,
)
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import ignore_event
from shared_pathways_service.homes.kubernetes import manager_link
from shared_pathways_service.homes.kubernetes.home import KubernetesHome
from shared_pathways_service.kube.paths import port_forward
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.relay import (
    FailureKind,
    Relay,
    RelayOptions,
    TunnelFailure,
)
from shared_pathways_service.tunnel.websocket_upgrade import Dial
from tests.cluster_state.services import SERVICE
from tests.homes.kubernetes.heads import (
    Manager,
    MovingApi,
    ScriptedApi,
    denied,
    gone,
    link,
    serving,
    until_answered,
)

DEADLINE_S = deadline(90.0)


def test_an_evicted_head_is_abandoned_and_a_refusal_is_reported(own_directories: Path) -> None:
    old, new = (port_forward(SERVICE.namespace, pod) for pod in ("evicted", "head"))
    api = ScriptedApi({old: gone, new: denied})

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), link(api, own_directories, "evicted") as made:
            with pytest.raises(AccessDenied, match="not you"):
                await made.wait_until_listening(ignore_event)
        await api.close()

    run_async(test())
    assert api.dialled == [old, new]


def test_a_silent_manager_is_reported_and_does_not_fail_the_proxy(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = ScriptedApi({port_forward(SERVICE.namespace, "head"): gone})
    told: list[Event] = []
    failed: asyncio.Queue[FailureKind] = asyncio.Queue()

    def relay(
        dial: Dial, *, on_failure: Callable[[TunnelFailure], object], **options: Any
    ) -> Relay:
        def hear(failure: TunnelFailure) -> None:
            on_failure(failure)
            failed.put_nowait(failure.kind)

        return Relay(dial, on_failure=hear, options=RelayOptions(redial=Timeout(0.1)), **options)

    said = "the resource manager of pw does not answer: cannot forward: pod not found"

    async def test() -> None:
        monkeypatch.setattr(manager_link, "Relay", relay)
        async with asyncio.timeout(DEADLINE_S), link(api, own_directories, "head") as made:
            waiting = asyncio.create_task(made.wait_until_listening(told.append))
            # The relay has given up a connection, and another one after that.
            assert [await failed.get() for _ in range(2)] == [FailureKind.UNREACHABLE] * 2
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            with patience(0.01), pytest.raises(ServiceNotReady, match=said):
                await made.wait_until_listening(told.append)
        await api.close()

    run_async(test())
    # Each failure once, however often it was met, and by whom.
    assert [(news.kind, news.reason) for news in told] == [("service.waiting", said)]
    assert len(api.dialled) > 1


def test_a_forbidden_request_fails_at_once(own_directories: Path) -> None:
    api = ScriptedApi({port_forward(SERVICE.namespace, "head"): denied})

    async def test() -> None:
        unlistened = link(api, own_directories, "", listening="")
        async with asyncio.timeout(DEADLINE_S), unlistened as made:
            with pytest.raises(AccessDenied, match="not you"):
                await made.status()
            # Not only who waited then.
            with pytest.raises(AccessDenied, match="not you"):
                async with made.unless_refused():
                    raise AssertionError("there is no way")
        await api.close()

    run_async(test())
    assert len(api.dialled) == 1


def test_a_watch_after_a_refusal_fails_likewise(own_directories: Path) -> None:
    api = ScriptedApi({port_forward(SERVICE.namespace, "head"): denied})

    async def test() -> None:
        unlistened = link(api, own_directories, "", listening="")
        async with asyncio.timeout(DEADLINE_S), unlistened as made:
            with pytest.raises(AccessDenied, match="not you"):
                await made.status()
            made.listen("ada")
            with pytest.raises(AccessDenied, match="not you"):
                await made.wait_until_listening(ignore_event)
        await api.close()

    run_async(test())
    assert len(api.dialled) == 1


class DeletingApi(ScriptedApi):
    """Deletes whatever it is to; refuses port-forwards when it is let to."""

    def __init__(self) -> None:
        super().__init__({port_forward(SERVICE.namespace, "head"): denied})
        self.deleted = asyncio.Event()
        self.refuses = asyncio.Event()

    async def upgrade(self, path: str, **options: Any) -> aiohttp.ClientResponse:
        await self.refuses.wait()
        return await super().upgrade(path, **options)

    async def delete(self, path: str, **_: Any) -> bool:
        self.deleted.set()
        return True


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_release_does_not_wait_for_an_unreachable_manager(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # Without an answer, one call alone would take 40 seconds.
    monkeypatch.setenv("SPS_PATIENCE", "10")

    async def test() -> None:
        api = DeletingApi()
        home = KubernetesHome(namespace=SERVICE.namespace)
        async with asyncio.timeout(DEADLINE_S), link(api, own_directories, "head") as made:
            home._api, home._manager = api, made
            if when == "before":
                api.refuses.set()
                with pytest.raises(AccessDenied, match="not you"):
                    await made.wait_until_listening(ignore_event)
            deleting = asyncio.create_task(home.delete_proxy("ada", "u", "s"))
            await api.deleted.wait()
            api.refuses.set()
            assert await asyncio.wait_for(deleting, timeouts.RELEASE.s / 2)
        await api.close()

    run_async(test())


def test_a_transient_refusal_does_not_end_an_accepted_watch(own_directories: Path) -> None:
    async def test() -> None:
        manager = Manager()  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), serving(manager, own_directories) as (ways, pod):
            api = MovingApi(None, denied, None, ways=ways)
            async with link(api, own_directories, "head", listening="") as made:
                assert (await made.status()).state == "serving"
                pod.cut.set()
                await ways.ended.wait()
                assert await until_answered(made) == "serving"
            await api.close()
        assert len(ways.dials) == 2

    run_async(test())


def test_the_current_obstacle_is_reported(own_directories: Path) -> None:
    full = CapacityError("one more call is needed; the limit (--max_calls) is 5")
    told: asyncio.Queue[str | None] = asyncio.Queue()

    async def test() -> None:
        manager = Manager(full)  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), serving(manager, own_directories) as (ways, _):
            api = MovingApi(gone, None, ways=ways)
            async with link(api, own_directories, "head") as made:
                waiting = asyncio.create_task(
                    made.wait_until_listening(lambda news: told.put_nowait(news.reason))
                )
                assert "pod not found" in str(await told.get())
                assert "the limit (--max_calls) is 5" in str(await told.get())
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await api.close()

    run_async(test())


def test_a_reachable_silent_manager_is_not_reported_as_unreachable(own_directories: Path) -> None:
    async def test() -> None:
        manager = Manager()  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), serving(manager, own_directories) as (ways, _):
            api = MovingApi(gone, None, ways=ways)
            async with link(api, own_directories, "head") as made:
                await manager.asked.wait()
                with patience(0.01), pytest.raises(ServiceNotReady, match="no answer within"):
                    await made.wait_until_listening(ignore_event)
            await api.close()

    run_async(test())
