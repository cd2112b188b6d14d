"""Messages between a proxy and its client at compile time: shardings and programs.

XLA trusts the client's answers: a sharding of other dimensions or devices, or a program with other
arguments than its operands on each device, would crash it. So each answer is checked against the
values of the call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from jaxlib import xla_client

from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.dtypes import dtype_of, kind_of_element
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument
from shared_pathways_service.servers.xla import mlir
from shared_pathways_service.servers.xla.named_shardings import as_tiles
from shared_pathways_service.servers.xla.op_shardings import checked_op_sharding

__all__ = [
    "Partition",
    "Values",
    "call_message",
    "describe",
    "read_answer",
    "read_partition",
    "read_results",
]

_Sharding = xla_pb2.OpSharding
#: Shardings of the whole value, or of the tiles on several devices.
_TYPES = frozenset((_Sharding.REPLICATED, _Sharding.OTHER))


@dataclasses.dataclass(frozen=True, slots=True)
class Values:
    """The operands or results of a call: XLA's shapes of the whole values, and its shardings.

    A sharding is None where XLA has chosen none yet.
    """

    shapes: Sequence[Any]
    shardings: Sequence[Any]

    @classmethod
    def of(cls, shape: Any, sharding: Any = None) -> Values:
        """Splits XLA's single shape or tuple into values."""
        if not shape.is_tuple():
            return cls([shape], [sharding])
        shapes = shape.tuple_shapes()
        return cls(shapes, [None] * len(shapes) if sharding is None else sharding.tuple_elements())


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """How a call is executed on each device: checked bytecode, and XLA's shardings."""

    program: bytes
    operands: Sequence[Any]
    results: Sequence[Any]


def call_message(
    kind: pb.CompileCall.Kind.ValueType,
    operands: Values | None = None,
    results: Values | None = None,
) -> bytes:
    """Returns a serialised CompileCall."""
    message = pb.CompileCall(kind=kind)
    for values, found in ((operands, message.operands), (results, message.results)):
        if values is not None:
            for shape, sharding in zip(values.shapes, values.shardings, strict=True):
                value = found.add()
                value.type.dtype = shape.numpy_dtype().name
                value.type.shape.extend(shape.dimensions())
                if sharding is not None:
                    value.sharding = _serialized(sharding)
    return message.SerializeToString()


def describe(sharding: Any) -> bytes:
    """Returns a serialised CompileCall with the sharding of a value of unknown type."""
    message = pb.CompileCall(kind=pb.CompileCall.INSPECT)
    message.operands.add().sharding = _serialized(sharding)
    return message.SerializeToString()


def read_answer(raw: bytes) -> pb.CompileAnswer:
    """Reads a CompileAnswer."""
    try:
        return pb.CompileAnswer.FromString(raw)
    except DecodeError as error:
        raise invalid_argument(f"not a CompileAnswer: {error}") from error


def read_results(answer: pb.CompileAnswer, results: Values, num_devices: int) -> Sequence[Any]:
    """Returns XLA's shardings of the results, which must fit the call."""
    return _shardings("result", answer.result_shardings, results, num_devices)


def read_partition(
    answer: pb.CompileAnswer,
    operands: Values,
    results: Values,
    num_devices: int,
    check: Callable[[Any], object],
) -> Partition:
    """Reads how a call is executed on each device, and checks it with `check` and the call."""
    taken = _shardings("operand", answer.operand_shardings, operands, num_devices)
    made = _shardings("result", answer.result_shardings, results, num_devices)
    module = mlir.parse(answer.program)
    check(module)
    main = mlir.main_types(module)
    _check_types("takes", main.arguments, operands, taken)
    _check_types("returns", main.results, results, made)
    return Partition(mlir.written(module), taken, made)


def _serialized(sharding: Any) -> bytes:
    found = _Sharding.FromString(sharding.to_proto().SerializeToString())
    return as_tiles(found).SerializeToString()


def _shardings(
    what: str, found: Sequence[bytes], values: Values, num_devices: int
) -> Sequence[Any]:
    if len(found) != len(values.shapes):
        raise _wrong(f"{len(found)} shardings for {len(values.shapes)} {what}s")
    return [
        _sharding(one, len(shape.dimensions()), num_devices)
        for one, shape in zip(found, values.shapes, strict=True)
    ]


def _sharding(serialized: bytes, rank: int, num_devices: int) -> Any:
    checked = checked_op_sharding(serialized, num_devices)
    message = _Sharding.FromString(checked)
    if message.type not in _TYPES:
        raise _wrong(f"a sharding of type {_Sharding.Type.Name(message.type)}")
    if any(kind != _Sharding.REPLICATED for kind in message.last_tile_dims):
        raise _wrong("a sharding over some axes of the mesh only, the others manual")
    tiles = len(message.tile_assignment_dimensions) - len(message.last_tile_dims)
    tiles -= message.replicate_on_last_tile_dim
    if message.type == _Sharding.OTHER and tiles != rank:
        raise _wrong(f"a sharding of {tiles} dimensions for an array of {rank}")
    parsed = xla_client.OpSharding()
    parsed.ParseFromString(checked)
    return xla_client.HloSharding.from_proto(parsed)


def _check_types(
    what: str, types: Sequence[mlir.TensorType], values: Values, shardings: Sequence[Any]
) -> None:
    found = [_text(*_type(one)) for one in types]
    tiles = [s.tile(shape) for s, shape in zip(shardings, values.shapes, strict=True)]
    wanted = [_text(tile.numpy_dtype().name, tile.dimensions()) for tile in tiles]
    if found != wanted:
        raise _wrong(
            f"a program that {what} {', '.join(found)[:300] or 'nothing'} on each device, not "
            f"{', '.join(wanted)}"
        )


def _type(tensor: mlir.TensorType) -> tuple[str, tuple[int, ...]]:
    if tensor.element == "token":
        return "token", ()
    return dtype_of(kind_of_element(tensor.element)).name, tensor.shape


def _text(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}{list(shape)}"


def _wrong(text: str) -> StatusError:
    return invalid_argument(f"custom partitioning: its client answered {text}")
