"""Chooses the kind of the streams to executors."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.proxy.executors.public_stream import (
    PublicStream,
    Stream,
    StreamBrokenError,
)

__all__ = ["OpenStream", "stream_opener"]

#: Opens a stream to an address: the method, the metadata, the channel's options, next_message.
OpenStream = Callable[
    [
        str,
        str,
        Sequence[tuple[str, str]] | None,
        Sequence[tuple[str, Any]],
        Callable[[], bytes | None],
    ],
    Stream,
]

_METHOD = "/check/Echo"
_MESSAGES = (b"", b"one", bytes(100_000))
_END = "it ends here"


def stream_opener(transport: str = "auto") -> OpenStream:
    """Returns what opens streams; `transport` is one of `TRANSPORTS`."""
    if transport == "public" or (transport == "auto" and not _core_is_fit()):
        return PublicStream
    from shared_pathways_service.servers.proxy.executors.core_stream import (  # noqa: PLC0415
        CoreStream,
    )

    return CoreStream


@functools.cache
def _core_is_fit() -> bool:
    """Tests the installed grpcio's core, once per process."""
    try:
        fault = _fault()
    except TimeoutError:
        fault = f"its test took more than {timeouts.EXECUTOR_STREAM_CHECK.s:g} s"
    except Exception as error:  # noqa: BLE001 - any private part may be missing
        fault = f"{type(error).__name__}: {error}"
    if fault:
        glog(
            "W",
            f"Not using the core of grpcio {grpc.__version__} directly for executors, so that each "
            f"program takes longer: {fault}",
        )
    return not fault


def _fault() -> str:
    def echo(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from itertools.islice(requests, len(_MESSAGES))
        context.abort(grpc.StatusCode.ABORTED, _END)

    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    service = grpc.method_handlers_generic_handler("check", {"Echo": handler})
    pool = futures.ThreadPoolExecutor(1, "check")
    server = grpc.server(pool, handlers=[service])
    port = server.add_insecure_port(f"{LOOPBACK}:0")
    server.start()
    try:
        found: futures.Future[tuple[list[bytes], str]] = futures.Future()
        threading.Thread(
            target=_try, args=(f"{LOOPBACK}:{port}", found), name="check", daemon=True
        ).start()
        messages, end = found.result(timeouts.EXECUTOR_STREAM_CHECK.s)
    finally:
        server.stop(None)
        pool.shutdown(wait=False)
    if messages != list(_MESSAGES):
        return "messages are lost"
    return "" if end == _END else f"the end of a call has another reason: {end}"


def _try(address: str, found: futures.Future[tuple[list[bytes], str]]) -> None:
    from shared_pathways_service.servers.proxy.executors.core_stream import (  # noqa: PLC0415
        CoreStream,
    )

    received: list[bytes] = []
    end = ""
    left = iter(_MESSAGES)
    try:
        stream = CoreStream(
            address, _METHOD, None, [("grpc.enable_http_proxy", 0)], lambda: next(left, None)
        )
        stream.wake()
        try:
            received.extend(stream.receive())
        except StreamBrokenError as error:
            end = str(error)
        stream.close()
    except Exception as error:  # noqa: BLE001 - any private part may be missing
        found.set_exception(error)
    else:
        found.set_result((received, end))
