"""Follows a resource manager's events in asyncio, over its restarts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc
import grpc.aio

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.versions import is_open
from shared_pathways_service.rmclient.failures import is_final
from shared_pathways_service.runtime.backoff import Backoff

__all__ = ["EventStream"]


class EventStream:
    """Watches a resource manager until it refuses, or is unavailable for too long.

    Args:
      stub: The resource manager's; the channel is the caller's to close.
      request: Makes the request of each stream.
      metadata: For the token.
      fallback: Makes the request after a resource manager refused the other one with
        FAILED_PRECONDITION, for one that speaks an earlier version; until that one ends.
      patience_s: The longest time without a stream; None: no limit. With a limit, calls fail
        instead of waiting for a connection.
      on_open: Called when nothing is missed any more: at the beginning of a stream, and again
        with each message.
      on_lost: Called with the reason when a stream failed and another will be opened.

    Attributes:
      reconnects: How many streams were opened after the first.
    """

    def __init__(
        self,
        stub: pb_grpc.ResourceManagerAsyncStub,
        request: Callable[[], pb.WatchRequest],
        *,
        metadata: tuple[tuple[str, str], ...] = (),
        fallback: Callable[[], pb.WatchRequest] | None = None,
        patience_s: float | None = None,
        on_open: Callable[[], object] = lambda: None,
        on_lost: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.reconnects = 0
        self._stub = stub
        self._request = request
        self._metadata = metadata
        self._fallback = fallback
        self._patience_s = patience_s
        self._on_open = on_open
        self._on_lost = on_lost
        self._backoff = Backoff()
        self._away_since: float | None = None

    async def follow(self, on_message: Callable[[pb.EventMessage], object]) -> None:
        """Calls `on_message` with each event; returns only by an exception.

        Raises:
          grpc.aio.AioRpcError: The resource manager refuses, or is unavailable for too long.
        """
        request = self._request
        while True:
            try:
                await self._watch(request(), on_message)
            except grpc.aio.AioRpcError as error:
                is_too_new = error.code() is grpc.StatusCode.FAILED_PRECONDITION
                if is_too_new and self._fallback is not None and request is not self._fallback:
                    request = self._fallback
                    continue
                if is_final(error) or self._is_away_too_long():
                    raise
                self._on_lost(error.details() or error.code().name)
            # The next one may be a later release.
            request = self._request
            await asyncio.sleep(self._backoff.next_pause_s())
            self.reconnects += 1

    async def _watch(
        self, request: pb.WatchRequest, on_message: Callable[[pb.EventMessage], object]
    ) -> None:
        call = self._stub.Watch(
            request, metadata=self._metadata, wait_for_ready=self._patience_s is None
        )
        # Known at once, while the first event may take long.
        if is_open(await call.initial_metadata() or ()):
            self._note_open()
        async for message in call:
            self._note_open()
            on_message(message)

    def _note_open(self) -> None:
        self._backoff.reset()
        self._away_since = None
        self._on_open()

    def _is_away_too_long(self) -> bool:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        return self._patience_s is not None and now - self._away_since > self._patience_s
