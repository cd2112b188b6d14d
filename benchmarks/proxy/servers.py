"""Servers that do less than a proxy, with which it is compared; each is its own process.

    python -m benchmarks.proxy.servers null SOCKET [TRANSPORT]   the proxy's, and next to nothing
    python -m benchmarks.proxy.servers stream SOCKET             bare gRPC streams of bytes
    python -m benchmarks.proxy.servers relay SOCKET SINK...      the same, from and to such servers

Each prints a line when it serves.
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

SLICES = ("tpuv6e:2x2", "tpuv6e:2x2")
MIB = 1 << 20
#: Bytes of a message, as JAX's client sends them and as the proxy does.
UP_CHUNK = MIB
DOWN_CHUNK = 16 * MIB


def serve_null(socket: str, kind: str = "auto") -> None:
    """Answers the requests that a program repeats, without carrying them out.

    What comes once is done really, e.g. a compilation, and the first execution of a program:
    without its result types JAX's client cannot go on.
    """
    from shared_pathways_service.api.topology import InstanceType
    from shared_pathways_service.servers.proxy.engine.engine import Engine
    from shared_pathways_service.servers.proxy.session.service import ProxyService
    from shared_pathways_service.servers.proxy.transport.grpc_transport import GrpcTransport

    class NullService(ProxyService):
        def open_session(self, *arguments: Any) -> Any:
            session = super().open_session(*arguments)
            session.handle = _null_handler(session)  # type: ignore[method-assign]
            return session

    engine = Engine([InstanceType.parse(text) for text in SLICES])
    engine.place_locally()
    transport = GrpcTransport(NullService(engine), kind)
    transport.start(server_port=None, server_socket=socket, default_port=0, bind_address="")


def _null_handler(session: Any) -> Any:
    import numpy as np

    from shared_pathways_service.protocol.ifrt import proxy_pb2
    from shared_pathways_service.servers.proxy.session.buffers import HostBuffer

    really = session.handle
    executed: set[int] = set()
    empty = {
        "check_value_ready_request": "check_value_ready_response",
        "destruct_array_request": "destruct_array_response",
        "copy_to_host_buffer_request": "copy_to_host_buffer_response",
    }

    def handle(raw: bytes) -> None:
        request = proxy_pb2.IfrtRequest.FromString(raw)
        kind = request.WhichOneof("request") or ""
        response = proxy_pb2.IfrtResponse()
        response.response_metadata.op_id = request.request_metadata.op_id
        if kind in empty:
            if kind == "copy_to_host_buffer_request":
                # Whatever it is asked for, it brings one small number.
                asked = request.copy_to_host_buffer_request.host_buffer_handle
                number = HostBuffer(np.zeros(4, np.uint8), session.buffers.charge(4))
                session.buffers.put(asked, number)
            getattr(response, empty[kind]).SetInParent()
        elif kind == "loaded_executable_execute_request":
            execute = request.loaded_executable_execute_request
            if execute.loaded_executable_handle not in executed:
                executed.add(execute.loaded_executable_handle)
                really(raw)
                return
            answer = response.loaded_executable_execute_response
            answer.SetInParent()
            answer.status_handle = execute.result_status_handle
        elif kind == "fully_replicated_shard_request":
            response.fully_replicated_shard_response.array_handle = (
                request.fully_replicated_shard_request.result_handle
            )
        else:
            really(raw)
            return
        session.answers.sender(session.answers.admit(len(raw)))(response.SerializeToString())

    return handle


def serve_stream(socket: str) -> None:
    """Takes bytes, and brings as many as it is asked for."""

    def take(messages: Iterator[bytes], _context: Any) -> bytes:
        return str(sum(map(len, messages))).encode()

    def bring(request: bytes, _context: Any) -> Iterator[bytes]:
        chunk = bytes(DOWN_CHUNK)
        for _ in range(int(request) // DOWN_CHUNK):
            yield chunk

    _serve_bytes(socket, take, bring)


def serve_relay(socket: str, *sinks: str) -> None:
    """Does the same with bytes that the servers on other sockets take and bring, in equal parts."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    channels = [grpc.insecure_channel(f"unix:{sink}", options=options) for sink in sinks]
    takes: list[Any] = [channel.stream_unary("/raw/Take") for channel in channels]
    brings: list[Any] = [channel.unary_stream("/raw/Bring") for channel in channels]

    def take(messages: Iterator[bytes], _context: Any) -> bytes:
        parts: list[queue.SimpleQueue[bytes | None]] = [queue.SimpleQueue() for _ in takes]
        calls = [sink.future(iter(part.get, None)) for sink, part in zip(takes, parts, strict=True)]
        for chunk, part in zip(messages, itertools.cycle(parts), strict=False):
            part.put(chunk)
        for part in parts:
            part.put(None)
        return str(sum(int(call.result()) for call in calls)).encode()

    def bring(request: bytes, _context: Any) -> Iterator[bytes]:
        part = str(int(request) // len(brings)).encode()
        for chunks in zip(*[sink(part) for sink in brings], strict=True):
            yield from chunks

    _serve_bytes(socket, take, bring)


def _serve_bytes(
    socket: str,
    take: Callable[[Iterator[bytes], Any], bytes],
    bring: Callable[[bytes, Any], Iterator[bytes]],
) -> None:
    """Serves the two methods of bare streams."""
    import grpc

    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        options=[("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)],
    )
    handlers: dict[str, Any] = {
        "Take": grpc.stream_unary_rpc_method_handler(take),
        "Bring": grpc.unary_stream_rpc_method_handler(bring),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("raw", handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    # Its reference is all that keeps a server.
    globals()["_server"] = server


if __name__ == "__main__":
    {"null": serve_null, "stream": serve_stream, "relay": serve_relay}[sys.argv[1]](*sys.argv[2:])
    print("ready", flush=True)
    threading.Event().wait()
