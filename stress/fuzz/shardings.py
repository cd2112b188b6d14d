"""Shardings as XLA has them, drawn at random: right ones, and ones with something wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from shared_pathways_service.protocol.ifrt import core_pb2, xla_pb2

__all__ = ["delimited", "field", "hlo_sharding", "odd_op_sharding", "varint"]

_TYPES = tuple(xla_pb2.OpSharding.Type.values())
_OTHER = xla_pb2.OpSharding.OTHER
_MAXIMAL = xla_pb2.OpSharding.MAXIMAL
_TUPLE = xla_pb2.OpSharding.TUPLE
_REPLICATED = xla_pb2.OpSharding.REPLICATED
#: Fields of xla.OpSharding that the proxy only passes on.
_TILE_DEVICES, _TUPLE_SHARDINGS, _REPLICATE_ON_LAST = 4, 5, 6
_IS_SHARD_GROUP, _SHARD_GROUP_ID, _SHARD_GROUP_TYPE = 11, 12, 13
_ODD = (0, 1, 2, 3, 7, 8, 99, -1, -8, 1 << 31, 1 << 40, (1 << 63) - 1, -(1 << 63))


def hlo_sharding(op_sharding: bytes, devices: Sequence[int]) -> core_pb2.ShardingProto:
    """Returns the message of a sharding over some devices."""
    message = core_pb2.HloShardingProto(xla_op_sharding=op_sharding)
    message.devices.device_ids.extend(devices)
    sharding = core_pb2.ShardingProto()
    sharding.serialized_sharding.type_name = "xla::ifrt::HloSharding"
    sharding.serialized_sharding.data = message.SerializeToString()
    return sharding


def odd_op_sharding(draw: random.Random, num_devices: int) -> bytes:
    """Returns a serialised xla.OpSharding: a right one in a third of the cases."""
    sharding = _Sharding(draw, num_devices)
    for _ in range(draw.choice((0, 1, 1, 2))):
        draw.choice(_WRONGS)(sharding, draw)
    return sharding.serialized()


class _Sharding:
    """A valid sharding; its fields are changed to make it invalid.

    Attributes:
      message: As far as our own message has fields.
      devices: The tiles' devices, in their order; none where `message` tells them in short.
    """

    def __init__(self, draw: random.Random, num_devices: int, depth: int = 0) -> None:
        self.message = xla_pb2.OpSharding(type=_OTHER)
        self.devices: list[int] = []
        self.parts: list[bytes] = []
        self.numbers: dict[int, int] = {}
        kind = draw.choice(("tiles", "tiles", "tiles", "tiles", "one device", "none", "tuple"))
        if kind == "tuple" and depth < 3:
            self.message.type = _TUPLE
            self.parts = [
                _Sharding(draw, num_devices, depth + 1).serialized()
                for _ in range(draw.randrange(4))
            ]
        elif kind == "one device":
            self.message.type = _MAXIMAL
            self.message.tile_assignment_dimensions.append(1)
            self.devices = [draw.randrange(max(1, num_devices))]
        elif kind == "none":
            self.message.type = draw.choice([t for t in _TYPES if t not in {_OTHER, _TUPLE}])
        else:
            self._tile(draw, max(1, num_devices))

    def _tile(self, draw: random.Random, num_devices: int) -> None:
        sizes = _factors(draw, num_devices)
        self.message.tile_assignment_dimensions.extend(sizes)
        subgroups = draw.choice((0, 0, 1, 2))
        if subgroups == 1 and draw.random() < 0.5:
            self.numbers[_REPLICATE_ON_LAST] = 1
        elif subgroups <= len(sizes):
            self.message.last_tile_dims.extend(
                draw.choice((_REPLICATED, xla_pb2.OpSharding.MANUAL, xla_pb2.OpSharding.UNREDUCED))
                for _ in range(subgroups)
            )
        if draw.random() < 0.5:
            reshaped = _factors(draw, num_devices)
            order = list(range(len(reshaped)))
            draw.shuffle(order)
            self.message.iota_reshape_dims.extend(reshaped)
            self.message.iota_transpose_perm.extend(order)
        else:
            self.devices = list(range(num_devices))
            draw.shuffle(self.devices)

    def serialized(self) -> bytes:
        data = self.message.SerializeToString()
        if self.devices:
            packed = b"".join(varint(device) for device in self.devices)
            data += delimited(_TILE_DEVICES, packed)
        for part in self.parts:
            data += delimited(_TUPLE_SHARDINGS, part)
        return data + b"".join(field(number, value) for number, value in self.numbers.items())


def _factors(draw: random.Random, product: int) -> list[int]:
    """Returns sizes that make up a product, ones among them."""
    sizes = []
    while product > 1:
        size = draw.choice([n for n in range(2, product + 1) if product % n == 0])
        sizes.append(size)
        product //= size
    for _ in range(draw.choice((0, 0, 1, 2))):
        sizes.insert(draw.randrange(len(sizes) + 1), 1)
    return sizes or [1]


# ---- what may be wrong


def _change(numbers: list[int], draw: random.Random) -> list[int]:
    """One number another, one more, one less, or all in another order."""
    changed = list(numbers)
    at = draw.randrange(len(changed) + 1)
    how = draw.randrange(4)
    if how == 0 or at == len(changed):
        changed.insert(at, draw.choice(_ODD))
    elif how == 1:
        del changed[at]
    elif how == 2:
        draw.shuffle(changed)
    else:
        changed[at] = draw.choice(_ODD)
    return changed


def _wrong_sizes(sharding: _Sharding, draw: random.Random) -> None:
    sizes = sharding.message.tile_assignment_dimensions
    sizes[:] = _change(list(sizes), draw)


def _wrong_devices(sharding: _Sharding, draw: random.Random) -> None:
    sharding.devices = _change(sharding.devices, draw)


def _wrong_iota(sharding: _Sharding, draw: random.Random) -> None:
    sizes = sharding.message.iota_reshape_dims
    sizes[:] = _change(list(sizes), draw)
    if draw.random() < 0.5:
        sharding.message.iota_transpose_perm[:] = range(len(sizes))


def _wrong_order(sharding: _Sharding, draw: random.Random) -> None:
    order = sharding.message.iota_transpose_perm
    order[:] = [n % (1 << 31) for n in _change(list(order), draw)]


def _wrong_subgroups(sharding: _Sharding, draw: random.Random) -> None:
    kinds = sharding.message.last_tile_dims
    kinds[:] = [n % 8 for n in _change(list(kinds), draw)]  # type: ignore[misc]


def _wrong_type(sharding: _Sharding, draw: random.Random) -> None:
    sharding.message.type = draw.choice((*_TYPES, 7, 99, -1))  # type: ignore[assignment]


def _wrong_number(sharding: _Sharding, draw: random.Random) -> None:
    numbers = (_REPLICATE_ON_LAST, _IS_SHARD_GROUP, _SHARD_GROUP_ID, _SHARD_GROUP_TYPE)
    sharding.numbers[draw.choice(numbers)] = draw.choice(_ODD)


def _wrong_parts(sharding: _Sharding, draw: random.Random) -> None:
    sharding.parts.append(_Sharding(draw, draw.randrange(9)).serialized())


_WRONGS: tuple[Callable[[_Sharding, random.Random], None], ...] = (
    _wrong_sizes,
    _wrong_sizes,
    _wrong_devices,
    _wrong_devices,
    _wrong_iota,
    _wrong_order,
    _wrong_subgroups,
    _wrong_type,
    _wrong_number,
    _wrong_parts,
)


# ---- protobuf's wire, for fields that our messages do not have


def field(number: int, value: int) -> bytes:
    """Returns a field that is a number."""
    return varint(number << 3) + varint(value)


def delimited(number: int, data: bytes) -> bytes:
    """Returns a field that is bytes, a message, or packed numbers."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Returns a number as it is on the wire; a negative one as 64 bits of two's complement."""
    value &= (1 << 64) - 1
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
