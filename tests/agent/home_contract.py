"""Contract of homes: what the agent relies on, tested with the homes of a fixture `make`."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator

from harness.deadlines import deadline
from harness.processes import run_async
from harness.session_requests import session_request
from shared_pathways_service.agent.probing import probe
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import Home, ProxyHandle, ignore_event
from shared_pathways_service.runtime.processes import identity_of

DEADLINE_S = deadline(90.0)
KIND = "tpuv6e:2x2"
SESSION = str(uuid.uuid4())


@contextlib.asynccontextmanager
async def opened(make: type[Home]) -> AsyncIterator[Home]:
    home = make()
    try:
        yield home
    finally:
        await home.close()
        # What it has counted can be asked for at any time.
        assert home.counters().tunnel_connections == 0


async def news_until(home: Home, handle: ProxyHandle, *kinds: str) -> list[Event]:
    """Follows a proxy until events of all these kinds have come."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        async for event in home.follow(handle):
            events.append(event)
            if {*kinds} <= {seen.kind for seen in events}:
                return events
    raise AssertionError(f"the news ended before {kinds}: {events}")


class HomeContract:
    """Tests of one kind of home: a class of tests derives from it."""

    def test_a_proxy_from_its_creation_to_its_end(self, make: type[Home]) -> None:
        async def life() -> None:
            async with opened(make) as home, asyncio.timeout(DEADLINE_S):
                wanted = session_request("first")
                info = await home.preflight(wanted, ignore_event)
                assert KIND in info.instance_types
                handle = await home.create_proxy(wanted, session=SESSION, owner=identity_of())
                assert handle.name == "first"
                assert handle.uid
                assert handle.is_remote == (home.name == "kubernetes")
                again = await home.create_proxy(wanted, session=SESSION, owner=identity_of())
                assert again.uid == handle.uid
                events = await news_until(
                    home, handle, "proxy.serving", "slice.placed", "tenant.running"
                )
                [placed] = [event for event in events if event.kind == "slice.placed"]
                assert placed.data["virtual_index"] == 0
                assert placed.data["instance_type"] == KIND
                assert isinstance(placed.data["generation"], int)
                address = await home.open_tunnel(handle, None)
                assert address.startswith("unix:/")
                if home.name != "fake":
                    await probe(address)
                assert len(await home.logs(handle, 1)) == 1
                assert await home.delete_proxy(handle.name, handle.uid, SESSION)
                assert not await home.delete_proxy(handle.name, handle.uid, SESSION)

        run_async(life())

    def test_a_proxy_is_deleted_by_its_session_and_not_by_another(self, make: type[Home]) -> None:
        async def life() -> None:
            wanted = session_request("second")
            async with opened(make) as home, asyncio.timeout(DEADLINE_S):
                await home.preflight(wanted, ignore_event)
                await home.create_proxy(wanted, session=SESSION, owner=identity_of())
            # What another agent, which knows the journal only, can do.
            async with opened(make) as home, asyncio.timeout(DEADLINE_S):
                assert not await home.delete_proxy("second", "", str(uuid.uuid4()))
                assert await home.delete_proxy("second", "", SESSION)
                assert not await home.delete_proxy("second", "", SESSION)

        run_async(life())

    def test_a_follower_receives_the_deletion(self, make: type[Home]) -> None:
        async def life() -> None:
            wanted = session_request("third")
            async with opened(make) as home, asyncio.timeout(DEADLINE_S):
                await home.preflight(wanted, ignore_event)
                handle = await home.create_proxy(wanted, session=SESSION, owner=identity_of())
                await news_until(home, handle, "proxy.serving")
                async with opened(make) as other:
                    await other.delete_proxy(handle.name, handle.uid, SESSION)
                with contextlib.suppress(SharedPathwaysError):
                    await news_until(home, handle, "proxy.deleted")

        run_async(life())
