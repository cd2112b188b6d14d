"""What tenants are told, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from harness.processes import DEADLINE_S, KIND
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.servers.resource_manager.streams import TenantStreams

TYPE = InstanceType.parse(KIND)


def _asked(name: str) -> messages.TenantAsked:
    return messages.TenantAsked(
        request=TenantRequest(name=name, virtual_slices=(TYPE,)), incarnation="1"
    )


def _queued(name: str, position: int) -> messages.NotifyQueued:
    return messages.NotifyQueued(tenant=name, position=position, reason="taken", holders=())


def _placed(name: str) -> messages.NotifyPlaced:
    return messages.NotifyPlaced(
        tenant=name, virtual_index=0, instance_type=TYPE, slice_id="slice-0", generation=1
    )


class _Heard:
    """Everything that tenants hear, in the order in which it leaves, as words."""

    def __init__(self) -> None:
        self.streams = TenantStreams(15.0)
        self.words: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._news = asyncio.Condition()

    def open(self, name: str) -> None:
        outbox = self.streams.open(_asked(name), 2)
        self._tasks.append(asyncio.create_task(outbox.send(lambda m: self._write(name, m))))
        self.streams.welcome(messages.WelcomeTenant(tenant=name, incarnation="1", recovering=False))

    async def _write(self, name: str, update: pb.TenantUpdate) -> None:
        what = str(update.WhichOneof("update"))
        if what != "welcome":
            self.words.append(f"{name} {what} {update.queued.position or ''}".strip())
        async with self._news:
            self._news.notify_all()

    async def wait(self, is_there: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S), self._news:
            await self._news.wait_for(is_there)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task


def test_a_placement_does_not_wait_for_a_thousand_places_in_the_queue() -> None:
    async def work() -> None:
        heard = _Heard()
        waiting = [f"t{number}" for number in range(1000)]
        for name in (*waiting, "ada"):
            heard.open(name)
        for position, name in enumerate(waiting, start=1):
            heard.streams.send(_queued(name, position))
        # What comes while they are told.
        await heard.wait(lambda: len(heard.words) > 0)
        heard.streams.send(_placed("ada"))
        await heard.wait(lambda: len(heard.words) == 1001)
        assert heard.words.index("ada placement") < 500
        assert [w for w in heard.words if w != "ada placement"] == [
            f"{name} queued {position}" for position, name in enumerate(waiting, start=1)
        ]
        await heard.close()

    asyncio.run(work())


def test_queue_positions_are_coalesced_and_placements_ordered() -> None:
    async def work() -> None:
        heard = _Heard()
        for name in ("ada", "eve", "bob"):
            heard.open(name)
        heard.streams.send(_queued("ada", 3))
        heard.streams.send(_queued("eve", 2))
        heard.streams.send(_queued("eve", 1))
        heard.streams.send(_placed("ada"))
        heard.streams.send(_queued("ada", 4))
        heard.streams.send(_queued("bob", 5))
        heard.streams.refuse(
            messages.RefuseTenant(
                tenant="bob",
                incarnation="1",
                kind=messages.RefusalKind.SLICES_TAKEN,
                message="taken",
            )
        )
        await heard.wait(lambda: len(heard.words) == 6)
        of = {
            name: [w for w in heard.words if w.startswith(name)] for name in ("ada", "eve", "bob")
        }
        assert of["ada"] == ["ada queued 3", "ada placement", "ada queued 4"]
        assert of["eve"] == ["eve queued 1"]
        assert of["bob"] == ["bob queued 5", "bob refused"]
        await heard.close()

    asyncio.run(work())


def test_a_new_stream_does_not_receive_old_messages() -> None:
    async def work() -> None:
        heard = _Heard()
        heard.open("ada")
        heard.streams.send(_queued("ada", 1))
        heard.open("ada")
        heard.streams.send(_placed("ada"))
        await heard.wait(lambda: "ada placement" in heard.words)
        assert heard.words == ["ada placement"]
        await heard.close()

    asyncio.run(work())
