"""The worker's stream to the resource manager (RM): hello, beats, and again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.status import error_of
from shared_pathways_service.servers.glog import glog

__all__ = ["Session"]

# Answers that another try would not change.
_FINAL = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)

# Short: a restarted RM grants nothing until its workers are back.
_BACKOFF_FIRST_S = 0.1
_BACKOFF_LAST_S = 2.0
_BYE_S = 1.0

_Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.WorkerMessage, pb.WorkerInstruction]"

_CHANNEL_OPTIONS = (
    # A proxy for the web is none for the cluster's own addresses.
    ("grpc.enable_http_proxy", 0),
    # An RM whose machine is gone sends no end of stream.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
)


class Session:
    """Keeps one worker registered, with one incarnation, for as long as it lives."""

    def __init__(
        self,
        address: str,
        hello: pb.WorkerHello,
        token: str | None,
        *,
        beat_interval_s: float,
        on_welcome: Callable[[], None],
    ) -> None:
        """Prepares; `run` does it.

        Args:
          address: The RM's.
          hello: What it is told at the beginning of each stream.
          token: What it wants to be shown.
          beat_interval_s: Until it says otherwise.
          on_welcome: Called whenever it has let the worker in.
        """
        self._address = address
        self._hello = hello
        self._token = token
        self._beat_interval_s = beat_interval_s
        self._on_welcome = on_welcome
        self._welcomed = False

    async def run(self, stop: asyncio.Event) -> None:
        """Keeps the RM told until `stop` is set, then says goodbye.

        Raises:
          SharedPathwaysError: The RM does not want this worker.
        """
        delay, last = _BACKOFF_FIRST_S, ""
        while not stop.is_set():
            self._welcomed = False
            try:
                await self._stream(stop)
                why = "the stream ended"
            except grpc.aio.AioRpcError as error:
                if error.code() in _FINAL:
                    raise error_of(
                        error, service="resource manager", address=self._address
                    ) from error
                why = f"{error.code().name}: {error.details()}"
            if stop.is_set():
                return
            if self._welcomed:
                delay, last = _BACKOFF_FIRST_S, ""
            if why != last:
                glog("W", f"resource manager at {self._address}: {why}; trying again")
                last = why
            with contextlib.suppress(TimeoutError):
                # Jitter spreads the workers of a service over time.
                await asyncio.wait_for(stop.wait(), delay * random.uniform(0.5, 1.0))  # noqa: S311
            delay = min(2 * delay, _BACKOFF_LAST_S)

    async def _stream(self, stop: asyncio.Event) -> None:
        """One stream, until it breaks or the worker is to stop."""
        async with grpc.aio.insecure_channel(self._address, options=_CHANNEL_OPTIONS) as channel:
            stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(channel)
            call: _Call = stub.WorkerSession(metadata=bearer(self._token))
            hearing = asyncio.create_task(self._hear(call))
            beating = asyncio.create_task(self._beat(call))
            stopping = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait({hearing, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not hearing.done():
                    await _cancel(beating)
                    await _say_goodbye(call)
            finally:
                await _cancel(hearing, beating, stopping)
            if not hearing.cancelled():
                hearing.result()

    async def _hear(self, call: _Call) -> None:
        """Reads to the end of the stream, whose error is raised."""
        async for instruction in call:
            if instruction.HasField("welcome"):
                self._beat_interval_s = instruction.welcome.beat_interval_s
                self._welcomed = True
                self._on_welcome()

    async def _beat(self, call: _Call) -> None:
        """Says hello, then beats; that the stream broke is for `_hear` to tell."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.WorkerMessage(hello=self._hello))
            for sequence in itertools.count(1):
                await asyncio.sleep(self._beat_interval_s)
                await call.write(pb.WorkerMessage(beat=pb.WorkerBeat(sequence=sequence)))


async def _say_goodbye(call: _Call) -> None:
    """Tells the RM that this is no accident, and waits a moment until it has heard."""
    bye = pb.WorkerMessage(bye=pb.WorkerBye(reason="the worker was told to stop"))
    with contextlib.suppress(
        grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError, TimeoutError
    ):
        await asyncio.wait_for(call.write(bye), _BYE_S)
        await asyncio.wait_for(call.done_writing(), _BYE_S)
        await asyncio.wait_for(call.code(), _BYE_S)


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
