"""Tests whether the installed grpcio's core behaves as `core_server` needs it."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.grpc_core.core_call import CoreCall
from shared_pathways_service.servers.grpc_core.core_server import CoreServer, Route
from shared_pathways_service.servers.serving.call_threads import CallThreads
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS

__all__ = ["fault", "use_core"]

_ECHO, _STAY = "/check/Echo", "/check/Stay"
_KEY, _VALUE = "check-bin", b"\x00\xff"
_MESSAGES = (b"", b"one", bytes(100_000))


@functools.cache
def fault() -> str:
    """Tests a server with a client of grpcio's public API, once per process; returns the fault."""
    pool = CallThreads(2, "check")
    try:
        return _try(pool)
    except Exception as error:  # noqa: BLE001 - any private part may be missing
        return f"{type(error).__name__}: {error}"
    finally:
        # Not waited for: the failure may be that a call never ends.
        pool.shutdown(wait=False, cancel_futures=True)


def use_core(transport: str) -> bool:
    """Whether to serve with the core, for one of `TRANSPORTS`; the log says why `auto` does not."""
    if transport != "auto":
        return transport == "core"
    found = fault()
    if found:
        glog("W", f"Not using the core of grpcio {grpc.__version__} directly: {found}")
    return not found


def _try(pool: futures.Executor) -> str:
    left = threading.Event()

    def stay(call: CoreCall) -> None:
        try:
            call.send(b"here")
            while call.receive() is not None:
                pass
        finally:
            left.set()

    routes = {_ECHO: Route(pool, _echo), _STAY: Route(pool, stay)}
    with contextlib.ExitStack() as stack:
        server = CoreServer(SERVER_OPTIONS, routes, pool, slow_reader_s=timeouts.CORE_CHECK.s)
        stack.callback(server.stop)
        port = server.add_insecure_port(f"{LOOPBACK}:0")
        server.start()
        # (Without the environment's proxy.)
        channel = stack.enter_context(
            grpc.insecure_channel(f"{LOOPBACK}:{port}", [("grpc.enable_http_proxy", 0)])
        )
        if not _messages_come_back(channel):
            return "messages are lost"
        if not _unknown_is_refused(channel):
            return "an unknown method is not refused"
        _go_away(channel)
        return "" if left.wait(timeouts.CORE_CHECK.s) else "the end of a client is not noticed"


def _echo(call: CoreCall) -> bytes:
    for message in call.messages():
        call.send(message)
    call.wake()
    call.wait(timeouts.CORE_CHECK.s)
    value: bytes = call.metadata[_KEY]
    return value


def _messages_come_back(channel: grpc.Channel) -> bool:
    echo: Any = channel.stream_stream(_ECHO)
    echoed = echo(iter(_MESSAGES), metadata=((_KEY, _VALUE),), timeout=timeouts.CORE_CHECK.s)
    return tuple(echoed) == (*_MESSAGES, _VALUE)


def _unknown_is_refused(channel: grpc.Channel) -> bool:
    unknown: Any = channel.unary_unary("/check/Unknown")
    try:
        unknown(b"", timeout=timeouts.CORE_CHECK.s)
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.UNIMPLEMENTED)
    return False


def _go_away(channel: grpc.Channel) -> None:
    gone = threading.Event()

    def requests() -> Iterator[bytes]:
        gone.wait(timeouts.CORE_CHECK.s)
        yield from ()

    stay: Any = channel.stream_stream(_STAY)
    call = stay(requests(), timeout=timeouts.CORE_CHECK.s)
    next(call)
    call.cancel()
    gone.set()
