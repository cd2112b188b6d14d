"""Requests that make, look at, copy and drop arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.proxy.operations import Operation
from shared_pathways_service.servers.proxy.session import Call, Handler, Session
from shared_pathways_service.servers.proxy.slices import Epoch
from shared_pathways_service.servers.proxy.status import Code, StatusError
from shared_pathways_service.servers.proxy.values import Spec, Value, when_all_settled
from shared_pathways_service.servers.proxy.xla import XlaClient, parts_of

__all__ = ["HANDLERS", "NAMED_RESULTS"]

_DONATE = proxy_pb2.ARRAY_COPY_SEMANTICS_DONATE_INPUT


def _at_once(function: Callable[[], None]) -> None:
    function()


def _handles(named: Sequence[int], count: int) -> Sequence[int]:
    """Returns the handles that a request names, or zeros; it names all or none."""
    if not named:
        return [0] * count
    if len(named) != count:
        raise StatusError(Code.INVALID_ARGUMENT, f"{len(named)} handles for {count} arrays")
    return named


def _derive(
    session: Session,
    name: str,
    inputs: Sequence[Value],
    specs: Sequence[Spec],
    run: Callable[[], Sequence[Any]],
    *,
    client: XlaClient | None = None,
) -> list[Value]:
    """Makes values that share their inputs' memory.

    Args:
      session: Whose.
      name: For messages.
      inputs: What they share.
      specs: One a value.
      run: Makes the arrays.
      client: Whose the arrays are; None: the input's.
    """
    outputs = [session.new_value(spec) for spec in specs]
    epochs: dict[Epoch, None] = {}
    for value in (*outputs, *inputs):
        epochs.update(dict.fromkeys(value.epochs))

    def run_and_share() -> Sequence[Any]:
        shared = [value.charge for value in inputs if value.charge is not None]
        for output in outputs:
            output.charge = shared or None
            output.client = client or inputs[0].client
        return run()

    Operation(
        name,
        run_and_share,
        inputs=inputs,
        outputs=outputs,
        epochs=tuple(epochs),
        session_id=session.session_id,
        runner=_at_once,
    ).start()
    return outputs


# ---- views


def _assemble(
    session: Session,
    request: proxy_pb2.AssembleArrayFromSingleDeviceArraysRequest,
    call: Call,
) -> None:
    values = [session.value(handle) for handle in request.single_device_array_handles]
    if request.HasField("dtype"):
        dtype = request.dtype
    elif values:
        dtype = core_pb2.DTypeProto(kind=values[0].known_spec().kind)  # type: ignore[arg-type]
    else:
        raise StatusError(Code.INVALID_ARGUMENT, "no arrays and no dtype to assemble")
    spec = session.spec(dtype, request.shape, request.sharding)
    if len(values) != len(spec.placing.device_ids):
        raise StatusError(
            Code.INVALID_ARGUMENT,
            f"{len(values)} arrays for a sharding over {len(spec.placing.device_ids)} devices",
        )
    shard_shape = spec.placing.shard_shape(spec.shape)
    for value, device_id in zip(values, spec.placing.device_ids, strict=True):
        if value.spec is None:
            continue
        if (value.spec.placing.device_ids, value.spec.kind) != ((device_id,), spec.kind):
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"the array for device {device_id} is of another device or type",
            )
        if value.spec.shape != shard_shape:
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"a shard of shape {value.spec.shape} where {shard_shape} is due",
            )

    def run() -> Sequence[Any]:
        return [_joined(spec, [(value, 0) for value in values])]

    (output,) = _derive(session, "assemble", values, [spec], run, client=spec.placing.client)
    call.response.assemble_array_from_single_device_arrays_response.array_handle = session.store(
        output, request.result_handle
    )


def _disassemble(
    session: Session,
    request: proxy_pb2.DisassembleIntoSingleDeviceArraysRequest,
    call: Call,
) -> None:
    value = session.value(request.array_handle)
    spec = value.known_spec()
    shard_shape = spec.placing.shard_shape(spec.shape)
    placings = [session.engine.placings.single(i) for i in spec.placing.device_ids]
    handles = _handles(request.result_handles, len(placings))
    specs = [Spec(spec.kind, spec.dtype, shard_shape, placing) for placing in placings]
    outputs = _derive(session, "disassemble", [value], specs, lambda: parts_of(value.array))
    response = call.response.disassemble_into_single_device_arrays_response
    response.array_handles.extend(map(session.store, outputs, handles))


def _fully_replicated_shard(
    session: Session, request: proxy_pb2.FullyReplicatedShardRequest, call: Call
) -> None:
    value = session.value(request.array_handle)
    spec = value.known_spec()
    placing = session.engine.placings.single(spec.placing.device_ids[0])
    (output,) = _derive(
        session,
        "fully replicated shard",
        [value],
        [Spec(spec.kind, spec.dtype, spec.shape, placing)],
        lambda: parts_of(value.array)[:1],
    )
    call.response.fully_replicated_shard_response.array_handle = session.store(
        output, request.result_handle
    )


def _remap(session: Session, request: proxy_pb2.RemapArraysRequest, call: Call) -> None:
    plan = request.plan
    values = [session.value(handle) for handle in request.array_handles]
    specs = [session.spec(s.dtype, s.shape, s.sharding) for s in plan.output_specs]
    handles = _handles(request.result_handles, len(specs))
    if len(values) != len(plan.input_specs):
        raise StatusError(Code.INVALID_ARGUMENT, "a remap plan for another number of arrays")
    pieces = _remap_pieces(plan, values, specs)
    clients = {spec.placing.client for spec in specs}
    if len(clients) > 1:
        raise StatusError(Code.UNIMPLEMENTED, "a remap to several sets of slices at once")

    def run() -> Sequence[Any]:
        return [
            _joined(spec, [(values[i], n) for i, n in wanted])
            for spec, wanted in zip(specs, pieces, strict=True)
        ]

    outputs = _derive(session, "remap", values, specs, run, client=next(iter(clients), None))
    if request.copy_semantics == _DONATE:
        _donate(session, request.array_handles)
    call.response.remap_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _joined(spec: Spec, pieces: Sequence[tuple[Value, int]]) -> Any:
    """Returns one array of pieces of others, each a value and a number."""
    client = spec.placing.client
    parts = [parts_of(value.array)[number] for value, number in pieces]
    if all(value.client is client for value, _ in pieces):
        return client.join(spec, parts)
    return client.adopt(spec, parts)


def _remap_pieces(
    plan: core_pb2.RemapPlanProto, values: Sequence[Value], specs: Sequence[Spec]
) -> list[list[tuple[int, int]]]:
    """Returns, for each output and each of its devices, which piece of which input it takes."""
    found: list[list[tuple[int, int] | None]] = [
        [None] * len(spec.placing.device_ids) for spec in specs
    ]
    for mapping in plan.mappings:
        if not (0 <= mapping.in_array < len(values) and 0 <= mapping.out_array < len(specs)):
            raise StatusError(Code.INVALID_ARGUMENT, "a remap plan names arrays that are not there")
        source_spec, target_spec = values[mapping.in_array].known_spec(), specs[mapping.out_array]
        sources, target = source_spec.placing.device_ids, target_spec.placing.device_ids
        if _piece(source_spec) != _piece(target_spec):
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"a remap plan makes shards of {_piece(target_spec)} of such of "
                f"{_piece(source_spec)}",
            )
        intervals = zip(
            mapping.from_start, mapping.from_end, mapping.from_step,
            mapping.to_start, mapping.to_end, mapping.to_step, strict=True,
        )  # fmt: skip
        for start, end, step, to_start, to_end, to_step in intervals:
            if step < 1 or to_step < 1:
                raise StatusError(Code.INVALID_ARGUMENT, "a remap plan with a step below 1")
            for source, place in zip(
                range(start, end, step), range(to_start, to_end, to_step), strict=True
            ):
                if not (0 <= source < len(sources) and 0 <= place < len(target)):
                    raise StatusError(Code.INVALID_ARGUMENT, "a remap plan names absent shards")
                if sources[source] != target[place]:
                    raise StatusError(
                        Code.INVALID_ARGUMENT, "a remap plan moves a shard to another device"
                    )
                found[mapping.out_array][place] = (mapping.in_array, source)
    complete = [[piece for piece in row if piece is not None] for row in found]
    if list(map(len, complete)) != list(map(len, found)):
        raise StatusError(Code.INVALID_ARGUMENT, "a remap plan leaves shards out")
    return complete


def _piece(spec: Spec) -> tuple[str, tuple[int, ...]]:
    """Returns type and shape of what one device holds."""
    return str(spec.dtype), spec.placing.shard_shape(spec.shape)


# ---- copies


def _copy(session: Session, request: proxy_pb2.CopyArraysRequest, call: Call) -> None:
    if request.memory_kind not in {"", "device"}:
        raise StatusError(Code.UNIMPLEMENTED, f"memory of kind {request.memory_kind!r}")
    handles = _handles(request.result_handles, len(request.array_handles))
    values = [session.value(handle) for handle in request.array_handles]
    copies = []
    for value in values:
        spec = value.known_spec()
        ids = tuple(request.device_ids) or spec.placing.device_ids
        placing = session.engine.placings.on(spec.placing, ids)
        copies.append((value, Spec(spec.kind, spec.dtype, spec.shape, placing)))
    outputs = [_copy_one(session, value, spec) for value, spec in copies]
    if request.copy_semantics == _DONATE:
        _donate(session, request.array_handles)
    call.response.copy_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _copy_one(session: Session, value: Value, spec: Spec) -> Value:
    output = session.new_value(spec)
    engine = session.engine
    ids = spec.placing.device_ids
    nbytes = spec.shard_bytes()

    def run() -> Sequence[Any]:
        output.charge = engine.memory.charge(ids, nbytes, "a copy of an array")
        client = spec.placing.client
        if value.client is not client:
            # Nothing ever writes to either: one memory does for both.
            return [client.adopt(spec, parts_of(value.array))]
        parts = client.copy(parts_of(value.array), ids)
        for part in parts:
            part.block_until_ready()
        return parts if len(parts) == 1 else [client.join(spec, parts)]

    Operation(
        "copy",
        run,
        inputs=[value],
        outputs=[output],
        epochs=tuple(dict.fromkeys((*value.epochs, *output.epochs))),
        session_id=session.session_id,
        runner=lambda function: engine.run_soon(function, nbytes * len(ids)),
    ).start()
    return output


def _donate(session: Session, handles: Sequence[int]) -> None:
    for handle in handles:
        session.arrays[handle] = session.arrays[handle].tombstone()


# ---- errors, waiting, deletion


def _make_errors(session: Session, request: proxy_pb2.MakeErrorArraysRequest, call: Call) -> None:
    code = int(request.error.code)
    known = code in {member.value for member in Code} - {Code.OK.value}
    error = StatusError(Code(code) if known else Code.UNKNOWN, request.error.message)
    handles = _handles(request.array_handles, len(request.array_specs))
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


def _check_future(session: Session, request: proxy_pb2.CheckFutureRequest, call: Call) -> None:
    handle = request.future_handle
    if handle not in session.futures:
        raise StatusError(Code.NOT_FOUND, f"Unknown future handle: {handle}")
    error = session.futures.pop(handle)
    if error is not None:
        raise error
    call.response.check_future_response.SetInParent()


def _delete(session: Session, request: proxy_pb2.DeleteArrayRequest, call: Call) -> None:
    unknown = [handle for handle in request.array_handle if handle not in session.arrays]
    for handle in request.array_handle:
        if handle not in unknown:
            session.arrays[handle] = session.arrays[handle].tombstone()
    future = session.new_handle()
    text = f"Unknown array handles: {unknown}"
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
    "remap_arrays_request": _remap,
    "copy_arrays_request": _copy,
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
    "remap_arrays_request": lambda r: r.result_handles,
    "bitcast_arrays_request": lambda r: r.result_handles,
    "reshard_arrays_request": lambda r: r.result_handles,
    "copy_arrays_request": lambda r: r.result_handles,
    "make_error_arrays_request": lambda r: r.array_handles,
}
