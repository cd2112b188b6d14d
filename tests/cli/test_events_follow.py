"""`sps events --follow` outlasts restarts, however little is decided between them."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from harness.processes import run_async
from harness.programs import DEADLINE_S
from shared_pathways_service.cli.commands.manager import events
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.versions import version_metadata
from tests.protocol.hearing import HearingStub
from tests.protocol.served import serving_stream


class Restarting:
    """Ends each stream once it was heard that it began; says something on the third."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()
        self.streams = 0

    async def watch(self, _request: pb.WatchRequest, context: Any) -> None:
        self.streams += 1
        self.heard.clear()
        if self.streams == 4:
            # As a refusal looks before its status has come.
            await context.send_initial_metadata(())
            await asyncio.wait_for(self.heard.wait(), DEADLINE_S)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "it is away for good")
        await context.send_initial_metadata(version_metadata(2))
        await asyncio.wait_for(self.heard.wait(), DEADLINE_S)
        if self.streams == 3:
            await context.write(pb.EventMessage(kind="rm.started", sequence=7))
        await context.abort(grpc.StatusCode.UNAVAILABLE, "it is started again")


def test_a_manager_is_given_up_only_after_a_long_absence() -> None:
    async def follow() -> tuple[list[int], int, str]:
        told: list[int] = []
        servicer = Restarting()
        try:
            async with serving_stream("Watch", servicer.watch) as plain:
                stub: Any = HearingStub(plain, servicer.heard)
                manager = Manager(stub=stub, metadata=(), address="here", version="1")
                following = events._follow(
                    manager,
                    pb.GetHistoryRequest(),
                    0,
                    lambda said: told.append(said.sequence),
                    away=Timeout(0.0),  # a second failure in a row is one too many
                )
                await asyncio.wait_for(following, DEADLINE_S)
        except ServiceNotReady as error:
            return told, servicer.streams, error.message
        raise AssertionError("it went on")

    told, streams, message = run_async(follow())
    assert told == [7]
    assert streams == 4
    assert "here" in message
