"""Limits calls to a server: their number, and the time for requests and answers.

gRPC's asyncio server holds a call as long as its client keeps it open, even if its request never
arrives completely, or its answers are never read. Here such a call is ended after a while. The
number of calls per host is limited, so that one host leaves room for others.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import Any, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.flags.parsing import flag, positive_int, seconds
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.serving import turns

__all__ = ["Admission", "CallOptions"]

_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CallOptions:
    """Flags of a server that limits calls; all calls over a Unix socket belong to this user."""

    max_calls: int = flag(
        16_384,
        parse=positive_int,
        env="SPS_MAX_CALLS",
        help="Limit the concurrent calls of all clients, workers and proxies; an open call costs "
        "32 KiB.",
    )
    max_calls_per_host: int = flag(
        8192,
        parse=positive_int,
        env="SPS_MAX_CALLS_PER_HOST",
        help="Limit the concurrent calls from one IP address; in a cluster all calls by "
        "port-forward have the same address.",
    )
    request_timeout_s: float = flag(
        10.0,
        parse=seconds,
        env="SPS_REQUEST_TIMEOUT_S",
        help="End a call whose request, or a stream whose hello, does not arrive in so long.",
    )
    slow_reader_s: float = flag(
        60.0,
        parse=seconds,
        env="SPS_SLOW_READER_S",
        help="End a call whose client does not read an answer for so long.",
    )


class Admission(grpc.aio.ServerInterceptor):
    """Wraps every method that is a coroutine.

    Must come after the check of tokens: calls that are refused there do not count.
    """

    def __init__(self, bounds: CallOptions, *, exempt: Collection[str] = ()) -> None:
        """Starts without calls; the exempt methods have no limits, and are never refused."""
        self._bounds = bounds
        self._exempt = frozenset(exempt)
        self._open = 0
        self._by_host: Counter[str] = Counter()

    @property
    def open(self) -> int:
        """The number of open calls, including ended ones whose client still holds them."""
        return self._open

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        """Returns the method's handler, with limits."""
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
            await self._run(name, handler, method, requests, _TimedContext(context, self._bounds))

        # As a stream the call is passed on before its request has arrived.
        return grpc.stream_stream_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    async def _run(
        self, name: str, handler: _Handler, method: Any, requests: object, context: _TimedContext
    ) -> None:
        host = _host_of(context.peer())
        refusal = self._refusal(host)
        if refusal:
            with contextlib.suppress(TimeoutError):
                async with within(timeouts.REFUSAL_SENT):
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
        except _TimedOut as given_up:
            glog("W", f"{name} of {host or 'a Unix socket'} was ended: {given_up}")
            # (If the client does not read that either, the call lasts, and counts, until its
            # connection ends.)
            await context.abort(given_up.code, str(given_up))

    def _refusal(self, host: str) -> str:
        bounds = self._bounds
        if self._open >= bounds.max_calls:
            return (
                f"one more call is needed; the limit (--max_calls) is {bounds.max_calls}, all of "
                "them in progress"
            )
        if host and self._by_host[host] >= bounds.max_calls_per_host:
            return (
                f"one more call of {host} is needed; the limit per host (--max_calls_per_host) is "
                f"{bounds.max_calls_per_host}, all of them in progress"
            )
        return ""

    def _left(self, host: str) -> None:
        self._open -= 1
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]


class _TimedOut(Exception):  # noqa: N818 - of a call, not of the program
    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class _TimedContext:
    """A call's context with timeouts; everything else is the context's own."""

    def __init__(self, context: _Context, bounds: CallOptions) -> None:
        self._context = context
        self._bounds = bounds
        self._opening: asyncio.Task[None] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def request(self) -> Any:
        """Returns the single request.

        Raises:
          _TimedOut: It did not arrive, or not in time.
        """
        limit = self._bounds.request_timeout_s
        try:
            request = await turns.wait_for(self._context.read(), limit)
        except TimeoutError:
            text = f"the request did not arrive within {limit:g} s (--request_timeout_s)"
            raise _TimedOut(grpc.StatusCode.DEADLINE_EXCEEDED, text) from None
        if request is grpc.aio.EOF:
            raise _TimedOut(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        return request

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Sends the initial metadata.

        Raises:
          _TimedOut: The client did not read it in time.
        """
        # It continues after a timeout: if it were cancelled, gRPC could not send a status any more,
        # and a client that reads again would wait forever.
        self._opening = asyncio.create_task(self._context.send_initial_metadata(metadata))
        # (If this task is cancelled because the client is gone, the result does not matter.)
        self._opening.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._take(asyncio.shield(self._opening))

    async def write(self, message: Any) -> None:
        """Sends a message.

        Raises:
          _TimedOut: The client did not read it in time.
        """
        if self._opening is None:
            # Separately: a first write that is abandoned would cancel it, too.
            await self.send_initial_metadata(())
        await self._take(self._context.write(message))

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> None:
        """Ends the call with a status, which can be sent once its metadata was read."""
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
            raise _TimedOut(grpc.StatusCode.RESOURCE_EXHAUSTED, text) from None


def _host_of(peer: str) -> str:
    """Returns the IP address of a peer in the form ``ipv4:1.2.3.4:5``; empty without one."""
    kind, _, rest = peer.partition(":")
    return rest.rpartition(":")[0] if kind in {"ipv4", "ipv6"} else ""
