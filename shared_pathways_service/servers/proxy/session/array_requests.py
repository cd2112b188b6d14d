"""Handles requests that split, join, await and delete arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.devices.dtypes import TOKEN, TOKEN_DTYPE
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.execution.values import Spec, Value, when_all_settled
from shared_pathways_service.servers.proxy.session.derived import derive, handles_for, joined
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session

__all__ = ["HANDLERS", "NAMED_RESULTS"]

#: The most unknown handles that an error names.
_SHOWN = 10
#: The shape with which JAX joins the tokens of several devices.
_SHAPE_OF_TOKENS = (0,)

# ---- views


def _assemble(
    session: Session, request: proxy_pb2.AssembleArrayFromSingleDeviceArraysRequest, call: Call
) -> None:
    values = [session.value(handle) for handle in request.single_device_array_handles]
    if request.HasField("dtype"):
        dtype = request.dtype
    elif values:
        dtype = core_pb2.DTypeProto(kind=values[0].known_spec().kind)  # type: ignore[arg-type]
    else:
        raise invalid_argument("no arrays and no dtype to assemble")
    spec = _spec_of_data_or_tokens(session, dtype, request)
    if len(values) != len(spec.placing.device_ids):
        raise invalid_argument(
            f"{len(values)} arrays for a sharding over {len(spec.placing.device_ids)} devices"
        )
    shard_shape = () if spec.kind == TOKEN else spec.placing.shard_shape(spec.shape)
    for value, device_id in zip(values, spec.placing.device_ids, strict=True):
        if value.spec is None:
            continue
        placing = value.spec.placing
        if (placing.device_ids, value.spec.kind) != ((device_id,), spec.kind):
            raise invalid_argument(f"the array for device {device_id} is of another device or type")
        if placing.memory_kind != spec.placing.memory_kind:
            raise invalid_argument(
                f"a shard in {placing.memory_kind} memory where {spec.placing.memory_kind} is due"
            )
        if value.spec.shape != shard_shape:
            raise invalid_argument(
                f"a shard of shape {value.spec.shape} where {shard_shape} is due"
            )

    def run() -> Sequence[Any]:
        return [joined(spec, [(value, 0) for value in values])]

    (output,) = derive(session, "assemble", values, [spec], run)
    call.response.assemble_array_from_single_device_arrays_response.array_handle = session.store(
        output, request.result_handle
    )


def _spec_of_data_or_tokens(
    session: Session,
    dtype: core_pb2.DTypeProto,
    request: proxy_pb2.AssembleArrayFromSingleDeviceArraysRequest,
) -> Spec:
    if dtype.kind != TOKEN:
        return session.spec(dtype, request.shape, request.sharding)
    # Of a program with ordered effects over several devices.
    if (shape := tuple(request.shape.dims)) != _SHAPE_OF_TOKENS:
        raise invalid_argument(f"an array of tokens has the shape {_SHAPE_OF_TOKENS}, not {shape}")
    return Spec(TOKEN, TOKEN_DTYPE, shape, session.engine.placings.from_wire(request.sharding))


def _disassemble(
    session: Session, request: proxy_pb2.DisassembleIntoSingleDeviceArraysRequest, call: Call
) -> None:
    value = session.value(request.array_handle)
    spec = value.known_spec()
    shard_shape = spec.placing.shard_shape(spec.shape)
    kind = spec.placing.memory_kind
    placings = [session.engine.placings.single(i, kind) for i in spec.placing.device_ids]
    handles = handles_for(request.result_handles, len(placings))
    specs = [Spec(spec.kind, spec.dtype, shard_shape, placing) for placing in placings]
    outputs = derive(session, "disassemble", [value], specs, value.parts, view_of=value)
    response = call.response.disassemble_into_single_device_arrays_response
    response.array_handles.extend(map(session.store, outputs, handles))


def _fully_replicated_shard(
    session: Session, request: proxy_pb2.FullyReplicatedShardRequest, call: Call
) -> None:
    value = session.value(request.array_handle)
    spec = value.known_spec()
    shard_shape = spec.placing.shard_shape(spec.shape)
    if shard_shape != spec.shape:
        raise invalid_argument(
            f"an array of shape {spec.shape} in shards of {shard_shape} is not fully replicated"
        )
    placing = session.engine.placings.single(spec.placing.device_ids[0], spec.placing.memory_kind)
    (output,) = derive(
        session,
        "fully replicated shard",
        [value],
        [Spec(spec.kind, spec.dtype, spec.shape, placing)],
        lambda: value.parts()[:1],
        view_of=value,
    )
    call.response.fully_replicated_shard_response.array_handle = session.store(
        output, request.result_handle
    )


# ---- errors, waiting, deletion


def _make_errors(session: Session, request: proxy_pb2.MakeErrorArraysRequest, call: Call) -> None:
    code = int(request.error.code)
    known = code in {member.value for member in Code} - {Code.OK.value}
    error = StatusError(Code(code) if known else Code.UNKNOWN, request.error.message)
    handles = handles_for(request.array_handles, len(request.array_specs))
    response = call.response.make_error_arrays_response
    for proto, handle in zip(request.array_specs, handles, strict=True):
        value = Value(session.spec(proto.dtype, proto.shape, proto.sharding), ())
        value.error = error
        response.array_handles.append(session.store(value, handle))


def _check_ready(session: Session, request: proxy_pb2.CheckValueReadyRequest, call: Call) -> bool:
    values = [session.value(handle) for handle in request.value_handles]
    call.response.check_value_ready_response.SetInParent()

    def settled() -> None:
        errors = (value.failure() for value in values)
        call.finish(next((error for error in errors if error is not None), None))

    when_all_settled(values, settled)
    return True


def _check_future(session: Session, request: proxy_pb2.CheckFutureRequest, call: Call) -> bool:
    handle = request.future_handle
    call.response.check_future_response.SetInParent()
    operation = session.executions.pop(handle, None)
    if operation is not None:
        # Clients before version 21 ask for the end of an execution this way.
        if not operation.add_callback(lambda: call.finish(operation.error)):
            call.finish(operation.error)
        return True
    if handle not in session.futures:
        raise StatusError(Code.NOT_FOUND, f"Unknown future handle: {handle}")
    call.finish(session.futures.pop(handle))
    return True


def _delete(session: Session, request: proxy_pb2.DeleteArrayRequest, call: Call) -> None:
    unknown = []
    for handle in request.array_handle:
        value = session.arrays.get(handle)
        if value is None:
            unknown.append(handle)
        else:
            session.arrays[handle] = value.tombstone()
    future = session.new_handle()
    more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
    text = f"Unknown array handles: {unknown[:_SHOWN]}{more}"
    session.futures[future] = StatusError(Code.NOT_FOUND, text) if unknown else None
    call.response.delete_array_response.deletion_future_handle = future


def _is_deleted(session: Session, request: proxy_pb2.IsArrayDeletedRequest, call: Call) -> None:
    value = session.value(request.array_handle)
    call.response.is_array_deleted_response.deleted = value.deleted


def _destruct(session: Session, request: proxy_pb2.DestructArrayRequest, call: Call) -> None:
    for handle in request.array_handle:
        session.arrays.pop(handle, None)
    call.response.destruct_array_response.SetInParent()


HANDLERS: dict[str, Handler] = {
    "assemble_array_from_single_device_arrays_request": _assemble,
    "disassemble_into_single_device_arrays_request": _disassemble,
    "fully_replicated_shard_request": _fully_replicated_shard,
    "make_error_arrays_request": _make_errors,
    "check_value_ready_request": _check_ready,
    "check_future_request": _check_future,
    "delete_array_request": _delete,
    "is_array_deleted_request": _is_deleted,
    "destruct_array_request": _destruct,
}

NAMED_RESULTS: dict[str, Callable[[Any], Sequence[int]]] = {
    "assemble_array_from_single_device_arrays_request": lambda r: [r.result_handle],
    "disassemble_into_single_device_arrays_request": lambda r: r.result_handles,
    "fully_replicated_shard_request": lambda r: [r.result_handle],
    "make_error_arrays_request": lambda r: r.array_handles,
}
