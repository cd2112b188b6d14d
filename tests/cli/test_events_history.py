"""`sps events` through a pager: whoever reads slowly is broken off, and misses nothing."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from harness.processes import run_async
from shared_pathways_service.cli.commands.manager import events
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.resource_manager.history_wire import window_of
from tests.protocol.served import serving_stream

#: The time of each decision; its number is its place, from 1.
TIMES = (10.0, 100.0, 110.0, 200.0, 210.0)
NOW = 150.0


class Impatient:
    """Sends one decision a call and then breaks off; time has passed when it is asked again."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self.asked = 0
        self._code = code

    async def history(self, request: pb.GetHistoryRequest, context: Any) -> None:
        since, _ = window_of(request.since, request.until, NOW + 60.0 * self.asked)
        self.asked += 1
        for number, time in enumerate(TIMES, start=1):
            if number > request.after and time >= (since or 0.0):
                await context.write(pb.HistoryPage(events=[pb.EventMessage(sequence=number)]))
                await context.abort(self._code, "the reader is too slow")
        await context.write(pb.HistoryPage(last=len(TIMES)))


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED],
    ids=["the server's patience", "the call's deadline"],
)
def test_a_span_before_now_begins_but_once(code: grpc.StatusCode) -> None:
    servicer = Impatient(code)

    async def read() -> tuple[list[int], int]:
        told: list[int] = []
        async with serving_stream("GetHistory", servicer.history) as stub:
            manager = Manager(stub=stub, metadata=(), address="here", version="1")
            request = pb.GetHistoryRequest(since=-60.0)
            last = await events._show_history(
                manager, request, lambda said: told.append(said.sequence)
            )
        return told, last

    # All from `NOW - 60` on, however late it was when they were asked for.
    assert run_async(read()) == ([2, 3, 4, 5], len(TIMES))
    assert servicer.asked == 5
