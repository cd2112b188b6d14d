"""The proxy's protocol spoken without JAX: one request at a time, answers matched by op_id."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Iterable, Sequence
from concurrent import futures
from typing import Any, Self

import grpc
import jaxlib.version
import numpy as np
from jaxlib import xla_client

from harness.processes import DEADLINE_S
from harness.proxy.programs import compile_options
from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2

F32 = core_pb2.DTypeProto.KIND_F32


class Failed(Exception):  # noqa: N818 - a status, as the proxy answered it
    """The answer's status was not OK."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RawClient:
    """One session; use as a context manager."""

    def __init__(
        self,
        address: str,
        *,
        version: int = ifrt.PROTOCOL_MAX,
        initialization_data: dict[str, bytes] | None = None,
        send_init: bool = True,
    ) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        self.channel = grpc.insecure_channel(address, options)
        # As JAX's client does: arrays have a connection of their own.
        self._buffers = grpc.insecure_channel(
            address, [*options, ("grpc.use_local_subchannel_pool", 1)]
        )
        metadata = proxy_pb2.GrpcIfrtSessionMetadata()
        metadata.version.protocol_version = version
        metadata.version.ifrt_serdes_version_number = newest_served(jaxlib.version.__version__)
        for key, value in (initialization_data or {}).items():
            metadata.initialization_data.attributes[key].string_value = value
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: dict[int, futures.Future[proxy_pb2.IfrtResponse]] = {}
        self._op_ids = itertools.count(1)
        self._handles = itertools.count(1)
        self._error: Exception = ConnectionError("the stream ended")
        self.answered: list[int] = []
        method: Any = self.channel.stream_stream(f"/{ifrt.SERVICE}/IfrtSession")
        self.stream = method(
            iter(self._requests.get, None),
            metadata=[(ifrt.SESSION_METADATA, metadata.SerializeToString())],
        )
        self.ended = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.session_id = self.call("init").session_id if send_init else 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session from this side."""
        self._requests.put(None)
        self.stream.cancel()
        self._reader.join()
        self._buffers.close()
        self.channel.close()

    def _read(self) -> None:
        try:
            for raw in self.stream:
                response = proxy_pb2.IfrtResponse.FromString(raw)
                op_id = response.response_metadata.op_id
                self.answered.append(op_id)
                if op_id in self._waiting:
                    self._waiting.pop(op_id).set_result(response)
        except grpc.RpcError as raised:
            self._error = raised
        self.ended.set()
        self._fail_waiting()

    def _fail_waiting(self) -> None:
        while self._waiting:
            with contextlib.suppress(KeyError):
                self._waiting.popitem()[1].set_exception(self._error)

    def status(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ended."""
        assert self.ended.wait(DEADLINE_S)
        return self.stream.code(), self.stream.details()

    # ---- requests

    def send_raw(self, data: bytes) -> None:
        self._requests.put(data)

    def begin(self, kind: str, *, context: int = 0, **fields: Any) -> Pending:
        """Sends a request; `kind` without ``_request``."""
        op_id = next(self._op_ids)
        request = proxy_pb2.IfrtRequest()
        request.request_metadata.op_id = op_id
        request.request_metadata.user_context_id = context
        message = getattr(request, f"{kind}_request")
        message.MergeFrom(type(message)(**fields))
        message.SetInParent()
        pending = Pending(kind, futures.Future())
        self._waiting[op_id] = pending.future
        self._requests.put(request.SerializeToString())
        if self.ended.is_set():
            # Perhaps after all that waited were told so.
            self._fail_waiting()
        return pending

    def call(self, kind: str, **fields: Any) -> Any:
        """Sends a request and returns its answer; raises `Failed`."""
        return self.begin(kind, **fields).result()

    def new_handle(self) -> int:
        return next(self._handles)

    # ---- host buffers

    def store(
        self, handle: int, data: bytes, *, size: int | None = None, chunk: int = 1 << 20
    ) -> None:
        """Uploads a host buffer."""
        header = proxy_pb2.GrpcHostBufferStoreMetadata(
            session_id=self.session_id,
            handle=handle,
            buffer_size=len(data) if size is None else size,
        )
        parts = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        messages = [
            proxy_pb2.GrpcHostBufferStoreRequest(data=part).SerializeToString() for part in parts
        ]
        method: Any = self._buffers.stream_unary(f"/{ifrt.SERVICE}/HostBufferStore")
        metadata = [(ifrt.HOST_BUFFER_METADATA, header.SerializeToString())]
        method(iter(messages), metadata=metadata, timeout=DEADLINE_S)

    def unary(self, method: str, request: Any) -> bytes:
        channel = self._buffers if method.startswith("HostBuffer") else self.channel
        call: Any = channel.unary_unary(f"/{ifrt.SERVICE}/{method}")
        answer: bytes = call(request.SerializeToString(), timeout=DEADLINE_S)
        return answer

    def lookup(self, handle: int) -> bytes:
        """Downloads a host buffer."""
        request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=self.session_id, handle=handle)
        method: Any = self._buffers.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
        raws: Iterable[bytes] = method(request.SerializeToString(), timeout=DEADLINE_S)
        return b"".join(proxy_pb2.GrpcHostBufferLookupResponse.FromString(r).data for r in raws)

    # ---- arrays and programs

    def make(
        self, array: int, buffer: int, shape: Sequence[int], sharding: core_pb2.ShardingProto
    ) -> None:
        """Makes an array of 32-bit floats of a host buffer, which may come later."""
        self.call(
            "make_array_from_host_buffer",
            dtype=core_pb2.DTypeProto(kind=F32),
            shape=core_pb2.ShapeProto(dims=shape),
            sharding=sharding,
            host_buffer_handle=buffer,
            array_handle=array,
        )

    def put(self, values: np.ndarray, sharding: core_pb2.ShardingProto) -> int:
        """Makes an array of 32-bit floats; returns its handle."""
        buffer, array = self.new_handle(), self.new_handle()
        self.store(buffer, np.ascontiguousarray(values, np.float32).tobytes())
        self.make(array, buffer, values.shape, sharding)
        return array

    def begin_fetch(self, array: int) -> tuple[Pending, int]:
        buffer = self.new_handle()
        return self.begin(
            "copy_to_host_buffer", array_handle=array, host_buffer_handle=buffer
        ), buffer

    def fetch(self, array: int) -> np.ndarray:
        """Returns an array of 32-bit floats, flat."""
        pending, buffer = self.begin_fetch(array)
        pending.result()
        data = self.lookup(buffer)
        request = proxy_pb2.GrpcHostBufferDeleteRequest(session_id=self.session_id, handle=buffer)
        self.unary("HostBufferDelete", request)
        return np.frombuffer(data, np.float32)

    def begin_compile(self, program: str, devices: Sequence[int]) -> Pending:
        return self.begin(
            "compile",
            program=core_pb2.Serialized(type_name="xla::ifrt::XlaProgram", data=program.encode()),
            compile_options=core_pb2.Serialized(
                type_name="xla::ifrt::XlaCompileOptions", data=compile_options(devices)
            ),
        )

    def compile(self, program: str, devices: Sequence[int]) -> int:
        """Compiles; returns the executable's handle."""
        response = self.begin_compile(program, devices).result()
        handle: int = response.loaded_executable_handle
        return handle

    def execute(self, program: int, arguments: Sequence[int], results: int = 1) -> list[int]:
        """Runs a program; returns its results' handles, as soon as the proxy answers."""
        handles = [self.new_handle() for _ in range(results)]
        self.call(
            "loaded_executable_execute",
            loaded_executable_handle=program,
            args_handles=arguments,
            result_array_handle=handles,
        )
        return handles

    def begin_ready(self, *arrays: int) -> Pending:
        return self.begin("check_value_ready", value_handles=arrays)

    def ready(self, *arrays: int) -> None:
        """Waits for arrays; raises `Failed` with the error of the first that has one."""
        self.begin_ready(*arrays).result()


class Pending:
    """A request that was sent."""

    def __init__(self, kind: str, future: futures.Future[proxy_pb2.IfrtResponse]) -> None:
        self.kind = kind
        self.future = future

    def result(self, deadline_s: float = DEADLINE_S) -> Any:
        """Waits for the answer."""
        response = self.future.result(deadline_s)
        status = response.response_metadata.status
        if status.code:
            raise Failed(int(status.code), status.message)
        assert response.WhichOneof("response") == f"{self.kind}_response"
        return getattr(response, f"{self.kind}_response")


def single(device: int) -> core_pb2.ShardingProto:
    """The sharding of an array on one device."""
    return _sharding(
        "xla::ifrt::SingleDeviceSharding", core_pb2.SingleDeviceShardingProto(device_id=device)
    )


def split(devices: Sequence[int], *, of: int = 0) -> core_pb2.ShardingProto:
    """The first axis split over devices; with `of`, each piece on several of them."""
    sharding = xla_client.OpSharding()
    sharding.type = xla_client.OpSharding.Type.OTHER
    pieces = of or len(devices)
    dimensions = [pieces] if pieces == len(devices) else [pieces, len(devices) // pieces]
    sharding.tile_assignment_dimensions = dimensions
    sharding.tile_assignment_devices = list(range(len(devices)))
    sharding.replicate_on_last_tile_dim = len(dimensions) == 2
    message = core_pb2.HloShardingProto(xla_op_sharding=sharding.SerializeToString())
    message.devices.device_ids.extend(devices)
    return _sharding("xla::ifrt::HloSharding", message)


def replicated(devices: Sequence[int]) -> core_pb2.ShardingProto:
    """The whole on each device."""
    message = core_pb2.HloShardingProto(xla_op_sharding=b"")
    message.devices.device_ids.extend(devices)
    return _sharding("xla::ifrt::HloSharding", message)


def spec(shape: Sequence[int], sharding: core_pb2.ShardingProto) -> core_pb2.ArraySpecProto:
    """A 32-bit float array."""
    return core_pb2.ArraySpecProto(
        dtype=core_pb2.DTypeProto(kind=F32),
        shape=core_pb2.ShapeProto(dims=shape),
        sharding=sharding,
    )


def _sharding(type_name: str, message: Any) -> core_pb2.ShardingProto:
    serialized = core_pb2.Serialized(type_name=type_name, data=message.SerializeToString())
    return core_pb2.ShardingProto(serialized_sharding=serialized)
