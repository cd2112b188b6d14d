"""What a page's server asks of a resource manager: no more than once for all pages."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from harness.processes import run_async
from harness.web_page import Script
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.web.service_questions import HeldOverTime, LastDecisions
from tests.web.samples import KIND, decision


class Asked(Script):
    """Notes what is asked for."""

    def __init__(self, *decisions: pb.EventMessage) -> None:
        super().__init__(decisions=decisions)
        self.requests: list[pb.GetHistoryRequest] = []

    @contextlib.asynccontextmanager
    async def manager(self) -> AsyncIterator[Manager]:
        async with super().manager() as manager:
            answer: Any = manager.stub.GetHistory

            def asked(request: pb.GetHistoryRequest, **options: Any) -> Any:
                noted = pb.GetHistoryRequest()
                noted.CopyFrom(request)
                self.requests.append(noted)
                return answer(request, **options)

            stub: Any = manager.stub
            stub.GetHistory = asked
            yield manager


def placed(number: int) -> pb.EventMessage:
    message = decision(time.time(), "slice.placed", f"t-{number}", slice="slice-0")
    message.sequence = number
    return message


def test_each_decision_is_read_once() -> None:
    async def run() -> None:
        service = Asked(*map(placed, range(1, 6)))
        last = LastDecisions(3)
        async with service.manager() as manager:
            answers = await asyncio.gather(*(last.read(manager) for _ in range(10)))
            for answer in answers:
                assert [one["tenant"] for one in answer] == ["t-5", "t-4", "t-3"]
            assert [request.after for request in service.requests] == [0, *[5] * 9]
            service.decisions = [*service.decisions, placed(6)]
            assert [one["sequence"] for one in await last.read(manager)] == [6, 5, 4]
        # Another service, or the same after a restart, begins anew.
        async with Asked(placed(1)).manager() as manager:
            assert [one["sequence"] for one in await last.read(manager)] == [1]

    run_async(run())


def test_a_chart_is_added_up_once_for_pages_that_ask_at_the_same_time() -> None:
    async def run() -> None:
        now = time.time()
        data = {"user": "ada", "instance_type": KIND}
        ended = decision(now - 10, "slice.freed", "t", slice="slice-0", duration_s=20.0, data=data)
        service = Asked(ended)
        going = [{"user": "bob", "start": now - 30, "end": now}]
        held = HeldOverTime()
        async with service.manager() as manager:

            async def read(window_s: float) -> dict[str, Any]:
                return await held.read(manager, going, by="user", window_s=window_s, parts=3)

            first, *others = await asyncio.gather(*(read(300.0) for _ in range(10)))
            assert first["complete"]
            assert list(first["series"]) == ["bob", "ada"]
            assert all(other["series"] == first["series"] for other in others)
            assert len(service.requests) < 10
            before = len(service.requests)
            await read(600.0)
            assert service.requests[before].since == -600.0

    run_async(run())
