"""XLA's own shardings as clients send them: those for which it ends the process are refused."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.proxy.status import Code, StatusError

__all__ = ["check_op_sharding"]

_TYPES = frozenset(xla_pb2.OpSharding.Type.values())


def check_op_sharding(serialized: bytes, num_devices: int) -> None:
    """Refuses what jaxlib does not check: it would abort, or write out pieces without end.

    Args:
      serialized: An xla.OpSharding.
      num_devices: Over which it is.

    Raises:
      StatusError: INVALID_ARGUMENT, or UNIMPLEMENTED for what JAX never sends.
    """
    try:
        sharding = xla_pb2.OpSharding.FromString(serialized)
    except DecodeError as error:
        raise StatusError(Code.INVALID_ARGUMENT, f"not an OpSharding: {error}") from error
    if sharding.HasField("named_sharding"):
        raise StatusError(Code.UNIMPLEMENTED, "an OpSharding with a named_sharding")
    if sharding.type == xla_pb2.OpSharding.TUPLE:
        raise StatusError(Code.INVALID_ARGUMENT, "an OpSharding of type TUPLE for one array")
    for kind in (sharding.type, *sharding.last_tile_dims):
        if kind not in _TYPES:
            raise StatusError(Code.INVALID_ARGUMENT, f"an OpSharding of the unknown type {kind}")
    pieces = 1
    for size in sharding.tile_assignment_dimensions:
        pieces *= size
        if size < 1 or pieces > num_devices:
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"an OpSharding with a tile_assignment_dimension of {size}: all must be from 1 up, "
                f"their product at most the number of devices, {num_devices}",
            )
    permutation = sharding.iota_transpose_perm
    if sorted(permutation) != list(range(len(sharding.iota_reshape_dims))):
        raise StatusError(
            Code.INVALID_ARGUMENT,
            f"an OpSharding with an iota_transpose_perm of {len(permutation)} numbers that are not "
            f"those from 0 to {len(sharding.iota_reshape_dims) - 1}, each once",
        )
