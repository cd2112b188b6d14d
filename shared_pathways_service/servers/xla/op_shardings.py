"""Refuses clients' shardings in XLA's own form with which XLA would crash."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.status_errors import StatusError, invalid_argument
from shared_pathways_service.servers.xla.named_shardings import as_tiles

__all__ = ["checked_op_sharding"]

#: The most numbers of a list that an error shows.
_SHOWN = 16
_TYPES = frozenset(xla_pb2.OpSharding.Type.values())


def checked_op_sharding(serialized: bytes, num_devices: int) -> bytes:
    """Returns a serialised xla.OpSharding as tiles, if it is one for so many devices.

    It refuses what jaxlib does not check: that would abort, not end, or misread it.
    """
    try:
        sharding = xla_pb2.OpSharding.FromString(serialized)
    except DecodeError as error:
        raise invalid_argument(f"not an OpSharding: {error}") from error
    sharding = as_tiles(sharding)
    if sharding.type == xla_pb2.OpSharding.TUPLE:
        raise invalid_argument("an OpSharding of type TUPLE for one array")
    for kind in (sharding.type, *sharding.last_tile_dims):
        if kind not in _TYPES:
            raise invalid_argument(f"an OpSharding of the unknown type {kind}")
    if sharding.type == xla_pb2.OpSharding.MAXIMAL:
        _check_one_device(sharding, num_devices)
    elif sharding.type == xla_pb2.OpSharding.OTHER:
        _check_tiles(sharding, num_devices)
    elif (
        sharding.tile_assignment_dimensions
        or sharding.tile_assignment_devices
        or sharding.iota_reshape_dims
        or sharding.last_tile_dims
    ):
        # XLA ignores these in most places, but JAX reads them.
        raise _wrong("tiles, of a type that has none")
    return sharding.SerializeToString()


def _check_one_device(sharding: xla_pb2.OpSharding, num_devices: int) -> None:
    (device, *more) = sharding.tile_assignment_devices or (-1,)
    if more or not 0 <= device < num_devices:
        raise _wrong(
            f"tile_assignment_devices {_shown(sharding.tile_assignment_devices)}: type MAXIMAL "
            f"has one, from 0 to {num_devices - 1}"
        )


def _check_tiles(sharding: xla_pb2.OpSharding, num_devices: int) -> None:
    sizes = sharding.tile_assignment_dimensions
    _check_product("tile_assignment_dimension", sizes, num_devices)
    if len(sharding.last_tile_dims) > len(sizes):
        # (XLA would read the rest as an unsigned negative number.)
        raise _wrong(f"{len(sharding.last_tile_dims)} last_tile_dims of {len(sizes)} dimensions")
    if sharding.last_tile_dims and sharding.replicate_on_last_tile_dim:
        raise _wrong("both last_tile_dims and replicate_on_last_tile_dim")
    reshaped, devices = sharding.iota_reshape_dims, sharding.tile_assignment_devices
    if reshaped and devices:
        raise _wrong("both tile_assignment_devices and iota_reshape_dims")
    if reshaped:
        _check_product("iota_reshape_dim", reshaped, num_devices)
        order = sharding.iota_transpose_perm
        if sorted(order) != list(range(len(reshaped))):
            raise _wrong(
                f"an iota_transpose_perm of {len(order)} numbers that are not those from 0 to "
                f"{len(reshaped) - 1}, each once"
            )
    elif sorted(devices) != list(range(num_devices)):
        raise _wrong(
            f"tile_assignment_devices {_shown(devices)}: they must be those from 0 to "
            f"{num_devices - 1}, each once"
        )


def _check_product(what: str, sizes: Sequence[int], num_devices: int) -> None:
    product = 1
    for size in sizes:
        product *= size
        if size < 1 or product > num_devices:
            raise _wrong(
                f"a {what} of {size}: all must be from 1 up, and their product the number of "
                f"devices, {num_devices}"
            )
    if not sizes or product != num_devices:
        raise _wrong(
            f"{what}s {_shown(sizes)}: their product must be the number of devices, {num_devices}"
        )


def _shown(numbers: Sequence[int]) -> str:
    return f"{list(numbers[:_SHOWN])}" + " and more" * (len(numbers) > _SHOWN)


def _wrong(what: str) -> StatusError:
    return invalid_argument(f"an OpSharding with {what}")
