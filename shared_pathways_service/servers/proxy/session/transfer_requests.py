"""Handles requests that make arrays of host buffers, and copy arrays to host buffers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.devices.dtypes import STRING
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.settling import Countdown
from shared_pathways_service.servers.proxy.execution.values import Spec, Value
from shared_pathways_service.servers.proxy.session.buffers import HostBuffer
from shared_pathways_service.servers.proxy.session.derived import handles_for
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session

__all__ = ["HANDLERS", "NAMED_RESULTS"]

#: Makes a host buffer of an array's pieces, and uses it.
_Copied = Callable[[Sequence[np.ndarray]], HostBuffer]
_Use = Callable[[HostBuffer], None]

_Shards = proxy_pb2.MakeArraysFromHostBufferShardsRequest


def _make_array(
    session: Session, request: proxy_pb2.MakeArrayFromHostBufferRequest, call: Call
) -> None:
    spec = session.spec(request.dtype, request.shape, request.sharding)
    strides = tuple(request.byte_strides.strides) if request.HasField("byte_strides") else None
    indices = spec.placing.pieces(spec.shape)

    def shards(buffers: Sequence[np.ndarray]) -> list[np.ndarray]:
        whole = _view(buffers[0], spec.dtype, spec.shape, strides)
        return [whole[index] for index in indices]

    value = _upload(session, spec, [request.host_buffer_handle], shards)
    call.response.make_array_from_host_buffer_response.array_handle = session.store(
        value, request.array_handle
    )


def _make_arrays(session: Session, request: _Shards, call: Call) -> None:
    handles = handles_for(request.array_handles, len(request.specs))
    # All, or none: the client would not know the handles of those before a refused one.
    values = [_make_one(session, item) for item in request.specs]
    call.response.make_arrays_from_host_buffer_shards_response.array_handles.extend(
        map(session.store, values, handles)
    )


def _make_one(session: Session, item: _Shards.MakeArraysFromHostBufferShardsSpec) -> Value:
    proto = item.array_spec
    spec = session.spec(proto.dtype, proto.shape, proto.sharding)
    shard_shape = spec.placing.shard_shape(spec.shape)
    source: list[int | None] = [None] * len(spec.placing.device_ids)
    if len(item.addressable_shard_indices) != len(item.host_buffers):
        raise invalid_argument("shard indices for another number of buffers")
    for number, indices in enumerate(item.addressable_shard_indices):
        for index in indices.indices:
            if not 0 <= index < len(source):
                raise invalid_argument(f"there is no shard {index}")
            source[index] = number
    numbers = [number for number in source if number is not None]
    if len(numbers) != len(source):
        raise invalid_argument("shards without a host buffer")
    for buffer in item.host_buffers:
        if tuple(buffer.shape.dims) != shard_shape or buffer.dtype.kind != spec.kind:
            raise invalid_argument(f"a shard that is not of shape {shard_shape}")
    strides = [
        tuple(b.byte_strides.strides) if b.HasField("byte_strides") else None
        for b in item.host_buffers
    ]

    def shards(buffers: Sequence[np.ndarray]) -> list[np.ndarray]:
        views = [
            _view(buffer, spec.dtype, shard_shape, stride)
            for buffer, stride in zip(buffers, strides, strict=True)
        ]
        return [views[number] for number in numbers]

    return _upload(session, spec, [b.host_buffer_handle for b in item.host_buffers], shards)


def _upload(
    session: Session,
    spec: Spec,
    handles: Sequence[int],
    shards: Callable[[Sequence[np.ndarray]], list[np.ndarray]],
) -> Value:
    """Returns a value that gets its data when its host buffers have arrived."""
    value = session.new_value(spec)
    engine = session.engine
    ids = spec.placing.device_ids
    arrived: dict[int, HostBuffer] = {}

    def run() -> Sequence[Any]:
        value.charge = engine.memory.charge(ids, spec.shard_bytes(), "an array from the host")
        pieces = shards([arrived[handle].data for handle in handles])
        return [spec.placing.client.put(spec, pieces)]

    nbytes = spec.shard_bytes() * len(ids)
    operation = Operation(
        "host to device",
        run,
        inputs=(),
        outputs=[value],
        epochs=value.epochs,
        session_id=session.session_id,
        runner=lambda function: engine.run_soon(function, nbytes),
    )
    different = set(handles)
    all_arrived = Countdown(len(different), operation.start)

    def arrive(handle: int, buffer: HostBuffer | StatusError) -> None:
        session.buffers.take(handle)
        if isinstance(buffer, StatusError):
            operation.fail(buffer)
            return
        arrived[handle] = buffer
        all_arrived()

    for handle in different:
        session.buffers.when_there(handle, functools.partial(arrive, handle))
    return value


def _view(
    buffer: np.ndarray, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...] | None
) -> np.ndarray:
    """Returns a host buffer as the array that the client described, without a copy."""
    size = math.prod(shape) * dtype.itemsize
    if strides is None or size == 0:
        if len(buffer) < size:
            raise invalid_argument(f"a host buffer of {len(buffer)} bytes instead of {size}")
        return buffer[:size].view(dtype).reshape(shape)
    if len(strides) == len(shape):
        # The client refuses strides below 1, except where they lead nowhere.
        strides = tuple(0 if n == 1 else s for s, n in zip(strides, shape, strict=True))
    if len(strides) != len(shape) or min(strides, default=0) < 0:
        raise invalid_argument(f"byte strides {strides} for shape {shape}")
    # Here, as numpy counts in 64 bits: it accepts overflows, and reads elsewhere.
    end = sum(s * (n - 1) for s, n in zip(strides, shape, strict=True)) + dtype.itemsize
    if end > len(buffer):
        raise invalid_argument(
            f"byte strides {strides} lead past the {len(buffer)} bytes of the host buffer"
        )
    return np.ndarray(shape, dtype, buffer.data, strides=strides)


def _copy_to_host(session: Session, request: proxy_pb2.CopyToHostBufferRequest, call: Call) -> bool:
    value = session.value(request.array_handle)
    handle = request.host_buffer_handle
    strides = tuple(request.byte_strides.strides) if request.HasField("byte_strides") else None
    call.response.copy_to_host_buffer_response.SetInParent()

    def failed(raised: Exception) -> None:
        # (Data that was lost meanwhile may have been freed while it was read.)
        failure = value.failure() or from_exception(raised)
        session.buffers.refuse(handle, failure)
        call.fail(failure)

    def copied(pieces: Sequence[np.ndarray]) -> HostBuffer:
        spec = value.known_spec()
        if spec.kind == STRING:
            text = _text_of(pieces)
            return HostBuffer(text, session.buffers.charge(len(text)))
        charge = session.buffers.charge(math.prod(spec.shape) * spec.dtype.itemsize)
        return HostBuffer(_to_host(spec, pieces, strides), charge)

    def deliver(buffer: HostBuffer) -> None:
        session.buffers.put(handle, buffer)
        call.answer()

    if session.engine.computes_here:
        value.when_settled(lambda: _fetch_here(session, value, copied, deliver, failed))
    else:
        _fetch_aside(session, value, copied, deliver, failed)
    return True


def _fetch_here(
    session: Session, value: Value, copied: _Copied, use: _Use, fail: Callable[[Exception], None]
) -> None:
    """Fetches a settled value's pieces."""
    try:
        _check(value)
        spec = value.known_spec()
        # Now, before a program that takes the memory may run: XLA never overwrites memory in use.
        pieces = value.fetch()
    except Exception as raised:  # noqa: BLE001 - whatever it is, the client receives it
        fail(raised)
        return

    def copy() -> None:
        try:
            _check(value)
            buffer = copied(pieces)
        except Exception as raised:  # noqa: BLE001 - whatever it is, the client receives it
            fail(raised)
        else:
            use(buffer)

    nbytes = math.prod(spec.shape) * spec.dtype.itemsize if len(pieces) > 1 else 0
    session.engine.run_soon(copy, nbytes)


def _check(value: Value) -> None:
    error = value.failure()
    if error is not None:
        raise error.copy()


def _fetch_aside(
    session: Session, value: Value, copied: _Copied, use: _Use, fail: Callable[[Exception], None]
) -> None:
    """Fetches a value's pieces from executors; a program that takes the memory waits for that."""
    fetched: list[HostBuffer] = []

    def run() -> Sequence[Any]:
        # (Copied at once, so that pieces do not gather here.)
        with value.reading() as pieces:
            fetched.append(copied(pieces))
        return ()

    operation = Operation(
        "device to host",
        run,
        inputs=[value],
        outputs=(),
        epochs=value.epochs,
        session_id=session.session_id,
        runner=session.engine.run_aside,
    )

    def ended() -> None:
        if operation.error is not None:
            fail(operation.error.copy())
        else:
            use(fetched.pop())

    operation.add_callback(ended)
    operation.start()


def _text_of(pieces: Sequence[Any]) -> np.ndarray:
    contents = proxy_pb2.StringArrayContents(strings=[bytes(pieces[0])])
    return np.frombuffer(contents.SerializeToString(), np.uint8)


def _to_host(
    spec: Spec, pieces: Sequence[np.ndarray], strides: tuple[int, ...] | None
) -> np.ndarray:
    """Returns the bytes of an array's pieces, in the order of the strides."""
    if len(pieces) == 1:
        whole = pieces[0]
    else:
        whole = np.empty(spec.shape, spec.dtype)
        for index, piece in zip(spec.placing.pieces(spec.shape), pieces, strict=True):
            whole[index] = piece
    if strides is not None and strides != whole.strides and whole.size:
        if len(strides) != whole.ndim:
            raise invalid_argument(f"byte strides {strides} for {spec.shape}")
        order = sorted(range(whole.ndim), key=lambda axis: -strides[axis])
        whole = whole.transpose(order)
        expected = np.ascontiguousarray(whole)
        if any(
            expected.strides[at] != strides[axis] and expected.shape[at] > 1
            for at, axis in enumerate(order)
        ):
            raise StatusError(Code.UNIMPLEMENTED, f"byte strides {strides} that leave gaps")
        whole = expected
    return np.ascontiguousarray(whole).reshape(-1).view(np.uint8)


HANDLERS: dict[str, Handler] = {
    "make_array_from_host_buffer_request": _make_array,
    "make_arrays_from_host_buffer_shards_request": _make_arrays,
    "copy_to_host_buffer_request": _copy_to_host,
}

NAMED_RESULTS: dict[str, Callable[[Any], Sequence[int]]] = {
    "make_array_from_host_buffer_request": lambda r: [r.array_handle],
    "make_arrays_from_host_buffer_shards_request": lambda r: r.array_handles,
}
