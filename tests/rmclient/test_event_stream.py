"""Events are followed over restarts, until the resource manager refuses or stays away."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from harness.processes import DEADLINE_S, run_async
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.versions import version_metadata
from shared_pathways_service.rmclient.event_stream import EventStream
from tests.protocol.served import serving_stream

_TRANSIENT, _FINAL = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED


class _Scripted:
    """Ends each stream with the next status, after an event."""

    def __init__(self, *codes: grpc.StatusCode, sends: bool = True) -> None:
        self.codes = list(codes)
        self.sends = sends
        self.asked: list[str] = []

    async def watch(self, request: pb.WatchRequest, context: Any) -> None:
        self.asked.append(request.tenant)
        if self.sends:
            await context.send_initial_metadata(version_metadata(2))
            await context.write(pb.EventMessage(kind="rm.started", sequence=len(self.asked)))
        await context.abort(self.codes.pop(0), "scripted")


async def _follow(
    served: _Scripted, **options: Any
) -> tuple[list[int], EventStream, grpc.StatusCode]:
    received: list[int] = []
    async with serving_stream("Watch", served.watch) as stub, asyncio.timeout(DEADLINE_S):
        stream = EventStream(stub, lambda: pb.WatchRequest(tenant="t"), **options)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.follow(lambda message: received.append(message.sequence))
    return received, stream, caught.value.code()


def test_events_are_followed_until_a_final_answer() -> None:
    lost: list[str] = []
    served = _Scripted(_TRANSIENT, grpc.StatusCode.RESOURCE_EXHAUSTED, _FINAL)
    received, stream, code = run_async(_follow(served, on_lost=lost.append))
    assert (received, code) == ([1, 2, 3], _FINAL)
    assert stream.reconnects == 2
    assert lost == ["scripted", "scripted"]


def test_a_resource_manager_that_stays_away_is_given_up() -> None:
    served = _Scripted(_TRANSIENT, _TRANSIENT, _FINAL, sends=False)
    _, stream, code = run_async(_follow(served, patience_s=0.0))
    assert (stream.reconnects, code) == (1, _TRANSIENT)


def test_an_open_stream_starts_the_patience_over() -> None:
    served = _Scripted(_TRANSIENT, _TRANSIENT, _TRANSIENT, _FINAL)
    opened: list[bool] = []
    received, _, code = run_async(
        _follow(served, patience_s=0.0, on_open=lambda: opened.append(True))
    )
    # Each stream is open when it begins, and again with its event.
    assert (received, code, len(opened)) == ([1, 2, 3, 4], _FINAL, 8)


def test_an_earlier_version_is_asked_again_until_it_ends() -> None:
    skew = grpc.StatusCode.FAILED_PRECONDITION
    served = _Scripted(skew, _TRANSIENT, skew, skew, sends=False)
    _, stream, code = run_async(_follow(served, fallback=pb.WatchRequest))
    assert served.asked == ["t", "", "t", ""]
    assert (stream.reconnects, code) == (1, skew)
