"""Handles requests that move arrays: other devices, another sharding, another type or shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.servers.devices.dtypes import TOKEN
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.remap_plans import pieces_of
from shared_pathways_service.servers.proxy.execution.values import Spec, Value
from shared_pathways_service.servers.proxy.session.derived import (
    derive,
    donate,
    handles_for,
    joined,
)
from shared_pathways_service.servers.proxy.session.session import Call, Handler, Session

__all__ = ["HANDLERS", "NAMED_RESULTS"]

_Kind = core_pb2.DTypeProto
#: On a device several elements of these share a byte; on the host each has its own.
_PACKED = frozenset(
    {_Kind.KIND_S2, _Kind.KIND_U2, _Kind.KIND_S4, _Kind.KIND_U4, _Kind.KIND_F4E2M1FN}
)

# ---- the same pieces, on the same devices


def _remap(session: Session, request: proxy_pb2.RemapArraysRequest, call: Call) -> None:
    plan = request.plan
    values = [session.value(handle) for handle in request.array_handles]
    specs = [session.spec(s.dtype, s.shape, s.sharding) for s in plan.output_specs]
    handles = handles_for(request.result_handles, len(specs))
    if len(values) != len(plan.input_specs):
        raise invalid_argument("a remap plan for another number of arrays")
    pieces = pieces_of(plan, values, specs)

    def run() -> Sequence[Any]:
        return [
            joined(spec, [(values[i], n) for i, n in wanted])
            for spec, wanted in zip(specs, pieces, strict=True)
        ]

    outputs = derive(session, "remap", values, specs, run)
    donate(session, request.copy_semantics, request.array_handles)
    call.response.remap_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _bitcast(session: Session, request: proxy_pb2.BitcastArraysRequest, call: Call) -> None:
    if request.copy_semantics == proxy_pb2.ARRAY_COPY_SEMANTICS_ALWAYS_COPY:
        raise invalid_argument("a bitcast makes no copy")
    values, specs = _values_and_specs(session, request)
    handles = handles_for(request.result_handles, len(specs))
    for value, spec in zip(values, specs, strict=True):
        _check_bitcast(value.known_spec(), spec)
    outputs = [
        derive(session, "bitcast", [value], [spec], _reinterpreted(value, spec))[0]
        for value, spec in zip(values, specs, strict=True)
    ]
    donate(session, request.copy_semantics, request.array_handles)
    call.response.bitcast_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _check_bitcast(source: Spec, target: Spec) -> None:
    if _where(source) != _where(target):
        raise invalid_argument(f"a bitcast from {_where(source)} to {_where(target)}")
    if source.shard_bytes() != target.shard_bytes():
        raise invalid_argument(f"a bitcast of shards of {source.piece} to {target.piece}")
    if source.kind != target.kind and not _PACKED.isdisjoint({source.kind, target.kind}):
        raise StatusError(
            Code.UNIMPLEMENTED, f"a bitcast from {source.dtype} to {target.dtype}: packed types"
        )


def _where(spec: Spec) -> str:
    return f"the {spec.placing.memory_kind} memory of devices {spec.placing.device_ids}"


def _reinterpreted(value: Value, spec: Spec) -> Callable[[], Sequence[Any]]:
    return lambda: [spec.placing.client.reinterpret(spec, value.parts())]


def _values_and_specs(
    session: Session, request: proxy_pb2.BitcastArraysRequest | proxy_pb2.ReshardArraysRequest
) -> tuple[list[Value], list[Spec]]:
    if len(request.array_handles) != len(request.array_specs):
        raise invalid_argument(
            f"{len(request.array_specs)} specs for {len(request.array_handles)} arrays"
        )
    values = [session.value(handle) for handle in request.array_handles]
    specs = [session.spec(s.dtype, s.shape, s.sharding) for s in request.array_specs]
    return values, specs


# ---- copies


def _copy(session: Session, request: proxy_pb2.CopyArraysRequest, call: Call) -> None:
    handles = handles_for(request.result_handles, len(request.array_handles))
    values = [session.value(handle) for handle in request.array_handles]
    copies = []
    for value in values:
        spec = value.known_spec()
        ids = tuple(request.device_ids) or spec.placing.device_ids
        placing = session.engine.placings.on(spec.placing, ids, request.memory_kind)
        copies.append((value, Spec(spec.kind, spec.dtype, spec.shape, placing)))
    outputs = [_moved(session, "copy", value, spec, _copied(value, spec)) for value, spec in copies]
    donate(session, request.copy_semantics, request.array_handles)
    call.response.copy_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _copied(value: Value, spec: Spec) -> Callable[[], Sequence[Any]]:
    def run() -> Sequence[Any]:
        client = spec.placing.client
        # Nothing ever writes to either: two clients can share the memory.
        make = client.copy if value.client is client else client.adopt
        return [make(spec, value.parts())]

    return run


def _reshard(session: Session, request: proxy_pb2.ReshardArraysRequest, call: Call) -> None:
    values, specs = _values_and_specs(session, request)
    handles = handles_for(request.result_handles, len(specs))
    for value, spec in zip(values, specs, strict=True):
        known = value.known_spec()
        if (known.kind, known.shape) != (spec.kind, spec.shape):
            raise invalid_argument(
                f"to reshard {known.dtype}{known.shape} to {spec.dtype}{spec.shape}"
            )
        # Both shardings must define which device has which part.
        known.placing.pieces(spec.shape)
        spec.placing.pieces(spec.shape)
    outputs = [
        _moved(session, "reshard", value, spec, _resharded(value, spec))
        for value, spec in zip(values, specs, strict=True)
    ]
    donate(session, request.copy_semantics, request.array_handles)
    call.response.reshard_arrays_response.array_handles.extend(map(session.store, outputs, handles))


def _resharded(value: Value, spec: Spec) -> Callable[[], Sequence[Any]]:
    held = value.known_spec().placing
    return lambda: [spec.placing.client.reshard(spec, held, value.parts())]


def _moved(
    session: Session, name: str, value: Value, spec: Spec, make: Callable[[], Sequence[Any]]
) -> Value:
    """Returns a value with memory of its own, made of another's data."""
    if spec.kind == TOKEN:
        # (Some releases of jaxlib crash when they copy one.)
        raise StatusError(Code.UNIMPLEMENTED, f"a token has no data to {name}")
    output = session.new_value(spec)
    engine = session.engine
    ids = spec.placing.device_ids
    nbytes = spec.shard_bytes()

    def run() -> Sequence[Any]:
        output.charge = engine.memory.charge(ids, nbytes, f"a {name} of an array")
        return make()

    Operation(
        name,
        run,
        inputs=[value],
        outputs=[output],
        epochs=tuple(dict.fromkeys((*value.epochs, *output.epochs))),
        session_id=session.session_id,
        runner=lambda function: engine.run_soon(function, nbytes * len(ids)),
    ).start()
    return output


HANDLERS: dict[str, Handler] = {
    "remap_arrays_request": _remap,
    "bitcast_arrays_request": _bitcast,
    "copy_arrays_request": _copy,
    "reshard_arrays_request": _reshard,
}

NAMED_RESULTS: dict[str, Callable[[Any], Sequence[int]]] = {
    kind: lambda request: request.result_handles for kind in HANDLERS
}
