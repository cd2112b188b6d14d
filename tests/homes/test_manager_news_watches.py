"""Watches of a resource manager that refuses, is silent, restarts, or is upgraded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.errors import CapacityError, SharedPathwaysError, VersionSkew
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes import release
from shared_pathways_service.homes.kubernetes.release import release_slices
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.event_messages import event_message
from shared_pathways_service.protocol.grpc_errors import abort
from shared_pathways_service.protocol.versions import version_metadata
from shared_pathways_service.rmclient import event_stream
from shared_pathways_service.runtime.backoff import Backoff
from tests.homes.tenant_events import placed
from tests.protocol.hearing import HearingStub

DEADLINE_S = deadline(90.0)


class DeafManager(pb_grpc.ResourceManagerServicer):
    """Lets nobody listen; counts who asks."""

    def __init__(self, error: SharedPathwaysError) -> None:
        self.asked = 0
        self._error = error

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, _request: object, context: Any
    ) -> None:
        self.asked += 1
        await abort(context, self._error)


@contextlib.asynccontextmanager
async def listened_to(
    manager: pb_grpc.ResourceManagerServicer,
    directory: Path,
    only: str = "",
    heard: asyncio.Event | None = None,
    troubles: list[str] | None = None,
) -> AsyncIterator[ManagerNews]:
    address = f"unix:{directory / 's'}"
    async with contextlib.AsyncExitStack() as stack:
        server = grpc.aio.server()
        pb_grpc.add_ResourceManagerServicer_to_server(manager, server)
        server.add_insecure_port(address)
        await server.start()
        stack.push_async_callback(server.stop, None)
        channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
        stub: Any = pb_grpc.ResourceManagerStub(channel)
        if heard is not None:
            stub = HearingStub(stub, heard)
        heard_of: list[str] = [] if troubles is None else troubles
        news = ManagerNews(stub, "rm:1", only=only, on_trouble=heard_of.append)
        stack.push_async_callback(news.close)
        yield news


def test_a_forbidden_watch_fails_with_the_reason_and_is_not_repeated(own_directories: Path) -> None:
    skew = VersionSkew("it speaks versions 7 to 9", hint="install the version of the service")
    manager = DeafManager(skew)  # type: ignore[abstract]

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories) as news:
            with pytest.raises(VersionSkew, match="7 to 9") as caught:
                await news.wait_until_listening()
            assert caught.value.hint == skew.hint
            with pytest.raises(VersionSkew):
                await news.wait_until_listening()

    run_async(test())
    assert manager.asked == 1


def test_a_transient_refusal_is_reported(own_directories: Path) -> None:
    full = CapacityError("one more call is needed; the limit (--max_calls) is 5")
    manager = DeafManager(full)  # type: ignore[abstract]

    troubles: list[str] = []

    async def test() -> None:
        listening = listened_to(manager, own_directories, troubles=troubles)
        async with asyncio.timeout(DEADLINE_S), listening:
            while not troubles:
                await asyncio.sleep(0.01)

    run_async(test())
    assert "the limit (--max_calls) is 5" in troubles[0]


class SilentManager(pb_grpc.ResourceManagerServicer):
    """Has nothing to tell of who is not there yet.

    Args:
      most: The highest version that it speaks; from 2 on it says that it has heard.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.asked: list[tuple[int, str]] = []
        self.tells = asyncio.Event()

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.EventMessage]:
        self.asked.append((request.versions.min, request.tenant))
        if request.versions.min > self._most:
            await abort(context, VersionSkew("it speaks version 1"))
        if self._most > 1:
            await context.send_initial_metadata(version_metadata(2))
        if not request.tenant:
            yield event_message(Event.of("slice.ready", source="rm", slice="slice-0", data={}))
        await self.tells.wait()
        yield event_message(placed(0, 1))
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("most", "asked"), [(2, [(2, "t")]), (1, [(2, "t"), (1, "")])], ids=["now", "first release"]
)
def test_all_tenants_are_watched_only_on_older_managers(
    own_directories: Path, most: int, asked: list[tuple[int, str]]
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def test() -> None:
        manager = SilentManager(most)  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories, "t") as news:
            await news.wait_until_listening()
            news.follow("t", lambda told: heard.put_nowait(told.kind))
            manager.tells.set()
            assert await heard.get() == "slice.placed"
            assert news.reconnects == 0
        assert manager.asked == asked

    run_async(test())


class FullManager(pb_grpc.ResourceManagerServicer):
    """Refuses once, with a status that comes late, and lets listen then."""

    def __init__(self) -> None:
        self.asked = 0
        self.heard = asyncio.Event()

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, _request: pb.WatchRequest, context: Any
    ) -> None:
        self.asked += 1
        if self.asked == 1:
            await context.send_initial_metadata(())
            await self.heard.wait()
            await abort(context, CapacityError("there are calls enough"))
        await context.send_initial_metadata(version_metadata(2))
        await asyncio.Event().wait()


def test_a_refusal_with_a_late_status_is_not_a_watch(own_directories: Path) -> None:
    troubles: list[str] = []

    async def test() -> None:
        manager = FullManager()  # type: ignore[abstract]
        listening = listened_to(manager, own_directories, "t", manager.heard, troubles)
        async with asyncio.timeout(DEADLINE_S), listening as news:
            await news.wait_until_listening()
            assert manager.asked == 2
            assert troubles == ["there are calls enough"]

    run_async(test())


class RestlessManager(pb_grpc.ResourceManagerServicer):
    """Lets listen, has nothing to tell, and ends; many times."""

    def __init__(self, times: int) -> None:
        self._left = times
        self.over = asyncio.Event()

    async def Watch(  # type: ignore[override]  # noqa: N802
        self, _request: pb.WatchRequest, context: Any
    ) -> None:
        await context.send_initial_metadata(version_metadata(2))
        self._left -= 1
        if not self._left:
            self.over.set()


def test_a_silent_watch_is_not_a_failed_attempt(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Doubled each time, the pauses before the last would be half an hour together.
    monkeypatch.setattr(event_stream, "Backoff", partial(Backoff, longest_s=3600.0))

    async def test() -> None:
        manager = RestlessManager(16)  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories, "t"):
            await manager.over.wait()

    run_async(test())


class UpgradedManager(pb_grpc.ResourceManagerServicer):
    """Is of the first release until it is started again."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.listened = asyncio.Event()

    async def Watch(  # noqa: N802
        self, request: pb.WatchRequest, context: Any
    ) -> AsyncIterator[pb.EventMessage]:
        self.asked.append((request.versions.min, request.tenant))
        if len(self.asked) == 1:
            await abort(context, VersionSkew("it speaks version 1"))
        if len(self.asked) == 2:
            yield event_message(Event.of("slice.ready", source="rm", slice="slice-0", data={}))
            return
        self.listened.set()
        await asyncio.Event().wait()


def test_an_upgraded_manager_is_asked_for_one_tenant_again(
    own_directories: Path,
) -> None:
    async def test() -> None:
        manager = UpgradedManager()  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories, "t"):
            await manager.listened.wait()
        assert manager.asked == [(2, "t"), (1, ""), (2, "t")]

    run_async(test())


class LateManager(pb_grpc.ResourceManagerServicer):
    """Knows no tenant when it is first asked to release one, and lets one in afterwards."""

    def __init__(self, times: int) -> None:
        self._times = times
        self.released: list[bool] = []
        self._asked = asyncio.Event()

    async def Watch(  # noqa: N802
        self, _request: object, _context: Any
    ) -> AsyncIterator[pb.EventMessage]:
        await self._asked.wait()
        yield event_message(placed(0, 1))
        await asyncio.Event().wait()

    async def ReleaseTenant(  # noqa: N802
        self, request: pb.ReleaseTenantRequest, _context: Any
    ) -> pb.ReleaseTenantResponse:
        assert request.tenant == "t"
        self.released.append(len(self.released) >= self._times)
        if len(self.released) == self._times:
            self._asked.set()
        return pb.ReleaseTenantResponse(released=self.released[-1])


@pytest.mark.parametrize(
    ("is_gone", "late", "released"),
    [(False, 1, [False, True]), (True, 2, [False, False, True]), (True, 9, [False] * 3)],
    ids=["while it runs", "its last word", "never heard of"],
)
def test_a_tenant_of_a_proxy_being_deleted_is_released(
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_gone: bool,
    late: int,
    released: list[bool],
) -> None:
    async def gone(_api: Any, namespace: str, session: str) -> None:
        assert (namespace, session) == ("n", "s")
        if not is_gone:
            await asyncio.Event().wait()

    monkeypatch.setattr(release, "_wait_until_gone", gone)
    # However slow this machine is, each call is answered. (The last case waits for all of it.)
    monkeypatch.setenv("SPS_PATIENCE", "4")

    async def test() -> None:
        manager = LateManager(late)  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories) as news:
            news.follow("t", lambda _news: None)
            await release_slices(None, "n", news, "t", "s")  # type: ignore[arg-type]
        assert manager.released == released

    run_async(test())


class DeafReleaser(DeafManager):
    """Lets nobody listen, and knows the tenant when it is asked to release it again."""

    def __init__(self, error: SharedPathwaysError, happened: list[str]) -> None:
        super().__init__(error)
        self._happened = happened

    async def ReleaseTenant(  # noqa: N802
        self, _request: pb.ReleaseTenantRequest, _context: Any
    ) -> pb.ReleaseTenantResponse:
        self._happened.append("asked")
        return pb.ReleaseTenantResponse(released=len(self._happened) > 1)


def test_a_release_works_without_a_permitted_watch(
    own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []

    async def gone(*_nobody: Any) -> None:
        # (Whatever else is waited for and ends at once has ended then.)
        for _ in range(9):
            await asyncio.sleep(0)
        happened.append("gone")

    monkeypatch.setattr(release, "_wait_until_gone", gone)
    # However slow this machine is, each call is answered.
    monkeypatch.setenv("SPS_PATIENCE", "10")

    async def test() -> None:
        manager = DeafReleaser(VersionSkew("not yours"), happened)  # type: ignore[abstract]
        async with asyncio.timeout(DEADLINE_S), listened_to(manager, own_directories) as news:
            with pytest.raises(VersionSkew):
                await news.wait_until_listening()
            news.follow("t", lambda _news: None)
            await release_slices(None, "n", news, "t", "s")  # type: ignore[arg-type]

    run_async(test())
    assert happened == ["asked", "gone", "asked"]
