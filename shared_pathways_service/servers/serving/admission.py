"""Which calls are let in, how long one may keep the server waiting, and what it is told then.

gRPC's asyncio server holds a call for as long as its client likes: one whose request never comes
whole, and one whose answers are never read. Here each is given up after a while, and a host has so
many at a time, so that one that opens all it can leaves room for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.serving import turns

__all__ = ["Admission"]

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

#: Seconds for a refusal to leave; one who does not read never takes it, and its call, which does
#: not count, is then left to the end of its connection.
_REFUSAL_S = 2.0


class Bounds(Protocol):
    """What is given at most; the names are those of flags."""

    @property
    def max_calls(self) -> int:
        """At a time, of all."""

    @property
    def max_calls_per_host(self) -> int:
        """At a time, of one IP address; those of a Unix socket are all this user's."""

    @property
    def request_timeout_s(self) -> float:
        """For the one request of a call to come whole."""

    @property
    def slow_reader_s(self) -> float:
        """For a client to take an answer."""


class Admission(grpc.aio.ServerInterceptor):
    """Wraps every method that is a coroutine.

    It must stand behind what checks tokens: what is refused there is none of its calls.
    """

    def __init__(self, bounds: Bounds, *, exempt: Collection[str] = ()) -> None:
        """Begins with no calls.

        Args:
          bounds: The limits.
          exempt: Paths of methods without limits, which are also answered when calls are refused.
        """
        self._bounds = bounds
        self._exempt = frozenset(exempt)
        self._open = 0
        self._by_host: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """Calls that are not over, those included that were given up and whose client is there."""
        return self._open

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Returns the method's handler, guarded."""
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method in self._exempt:
            return handler
        method: Any = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        if not inspect.iscoroutinefunction(method):
            return handler
        name = handler_call_details.method.rpartition("/")[2]

        async def guarded(requests: object, context: _Context) -> None:
            await self._run(name, handler, method, requests, _Patient(context, self._bounds))

        # As a stream the call is handed over before its request has come.
        return grpc.stream_stream_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _run(
        self, name: str, handler: _Handler, method: Any, requests: object, context: _Patient
    ) -> None:
        host = _host_of(context.peer())
        refusal = self._refusal(host)
        if refusal:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REFUSAL_S):
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, refusal)
            return
        self._open += 1
        self._by_host[host] += 1
        context.add_done_callback(lambda _: self._left(host))
        try:
            if handler.request_streaming:
                await method(requests, context)
                return
            answer = await method(await context.request(), context)
            if not handler.response_streaming:
                await context.write(answer)
        except _GivenUp as given_up:
            glog("W", f"{name} of {host or 'a Unix socket'} is given up: {given_up}")
            # (Of a client that does not take that either, the call goes on, and counts, until its
            # connection ends.)
            await context.abort(given_up.code, str(given_up))

    def _refusal(self, host: str) -> str:
        bounds = self._bounds
        if self._open >= bounds.max_calls:
            return (
                f"one more call is needed; the limit (--max_calls) is {bounds.max_calls}, all of "
                "them under way"
            )
        if host and self._by_host[host] >= bounds.max_calls_per_host:
            return (
                f"one more call of {host} is needed; the limit of a host (--max_calls_per_host) is "
                f"{bounds.max_calls_per_host}, all of them under way"
            )
        return ""

    def _left(self, host: str) -> None:
        self._open -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class _GivenUp(Exception):  # noqa: N818 - of a call, not of the program
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Patient:
    """A call's context that does not wait for ever; all else is the context's own."""

    def __init__(self, context: _Context, bounds: Bounds) -> None:
        self._context = context
        self._bounds = bounds
        self._opening: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def request(self) -> Any:
        """Returns the one request.

        Raises:
          _GivenUp: It did not come, or not in time.
        """
        limit = self._bounds.request_timeout_s
        try:
            request = await turns.wait_for(self._context.read(), limit)
        except TimeoutError:
            text = f"the request did not come within {limit:g} s (--request_timeout_s)"
            raise _GivenUp(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        if request is grpc.aio.EOF:
            raise _GivenUp(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return request

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Tells the client that it is heard.

        Raises:
          _GivenUp: It was not taken in time.
        """
        # It goes on where it is given up: cancelled, it would be sent no less, and gRPC then has no
        # way to send a status, so that a client that reads again would wait for ever.
        self._opening = asyncio.create_task(self._context.send_initial_metadata(metadata))
        # (Who is cancelled meanwhile, as the client is gone, does not look how it went.)
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._take(asyncio.shield(self._opening))

    async def write(self, message: Any) -> None:
        """Sends a message.

        Raises:
          _GivenUp: It was not taken in time.
        """
        if self._opening is None:
            # On its own: a first write that is given up would take it along.
            await self.send_initial_metadata(())
        await self._take(self._context.write(message))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        """Ends the call with a status, which can leave once its metadata have been taken."""
        if self._opening is not None:
            await self._opening
        await self._context.abort(code, details, trailing_metadata)

    async def _take(self, sending: Awaitable[None]) -> None:
        limit = self._bounds.slow_reader_s
        try:
            async with asyncio.timeout(limit):
                await sending
        except TimeoutError:
            text = f"an answer was not read within {limit:g} s (--slow_reader_s)"
            raise _GivenUp(grpc.StatusCode.RESOURCE_EXHAUSTED, text) from None


def _host_of(peer: str) -> str:
    """Returns the IP address of a peer, as ``ipv4:1.2.3.4:5`` names it; empty: it has none."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in {"ipv4", "ipv6"} else ""
