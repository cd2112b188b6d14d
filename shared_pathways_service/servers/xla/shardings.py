"""Converts IFRT's shardings into XLA's, and caches them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.interface import DEVICE_MEMORY, DeviceClient
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.xla.clients import Clients, MakeClient, forget_cached
from shared_pathways_service.servers.xla.op_shardings import checked_op_sharding
from shared_pathways_service.servers.xla.platforms import CPU, Platform
from shared_pathways_service.servers.xla.xla import XlaClient

__all__ = ["Placing", "Placings"]

_SINGLE = "xla::ifrt::SingleDeviceSharding"
_HLO = "xla::ifrt::HloSharding"
_CONCRETE_EVEN = "xla::ifrt::ConcreteEvenSharding"
_REMEMBERED = 4096
# A serialised xla.OpSharding with every field at its default means "replicated".
_REPLICATED = b""

Index = tuple[slice, ...]
_HasMemoryKind = (
    core_pb2.SingleDeviceShardingProto
    | core_pb2.HloShardingProto
    | core_pb2.ConcreteEvenShardingProto
)


class Placing:
    """A sharding over known devices.

    Attributes:
      device_ids: The device of each piece, in the sharding's order.
      slices: The indices of its virtual slices, ascending.
      client: The client of its arrays: every set of slices has a client of its own.
      proto: The protocol's form.
      sharding: XLA's form, for arrays.
      op_sharding: The serialised xla.OpSharding; None for a single device, and if the protocol's
        form does not define how the pieces make up the whole.
      shard: The shape of each piece, if the protocol's form has only that.
    """

    __slots__ = (
        "_pieces",
        "client",
        "device_ids",
        "memory_kind",
        "op_sharding",
        "proto",
        "shard",
        "sharding",
        "slices",
    )

    def __init__(
        self,
        device_ids: tuple[int, ...],
        slices: tuple[int, ...],
        client: DeviceClient,
        *,
        proto: core_pb2.ShardingProto,
        sharding: Any,
        memory_kind: str,
        op_sharding: bytes | None = None,
        shard: tuple[int, ...] | None = None,
    ) -> None:
        self.device_ids = device_ids
        self.slices = slices
        self.client = client
        self.proto = proto
        self.sharding = sharding
        self.memory_kind = memory_kind
        self.op_sharding = op_sharding
        self.shard = shard
        self._pieces: dict[tuple[int, ...], tuple[Index, ...]] = {}

    def pieces(self, shape: tuple[int, ...]) -> tuple[Index, ...]:
        """Returns, for each device, its part of an array of this shape."""
        if self.shard is not None and self.shard != shape:
            raise StatusError(
                Code.UNIMPLEMENTED,
                f"{self.proto.serialized_sharding.type_name} does not tell which part of an array "
                "each device has",
            )
        found = self._pieces.get(shape)
        if found is None:
            try:
                by_device = self.sharding.devices_indices_map(shape)
            except ValueError as error:
                raise invalid_argument(str(error)) from error
            except AssertionError as error:  # JAX's own, if the number of dimensions differs
                raise invalid_argument(
                    f"an array of shape {shape} cannot be split this way: {error}"
                ) from error
            found = tuple(tuple(index) for index in by_device.values())
            if len(self._pieces) < _REMEMBERED:
                self._pieces[shape] = found
        return found

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape of the first device's piece of an array of this shape."""
        if self.shard is not None:
            return self.shard
        try:
            first = self.pieces(shape)[0]
        except NotImplementedError:
            # Of an array that is still to be reduced no device has a part, but each a shape.
            shard: tuple[int, ...] = self.sharding.shard_shape(shape)
            return shard
        return tuple(
            len(range(*part.indices(size))) for part, size in zip(first, shape, strict=True)
        )


class Placings:
    """Makes `Placing`s; the same for the same sharding.

    Args:
      slice_of: The slice of each device.
      platform: The devices of this process, for clients that are made here.
      make: Makes clients that are elsewhere.
    """

    def __init__(
        self, slice_of: Sequence[int], platform: Platform = CPU, make: MakeClient | None = None
    ) -> None:
        self._slice_of = tuple(slice_of)
        make = make or (lambda ids, _slices: XlaClient(ids, platform))
        self._clients = Clients(slice_of, self._forget, make)
        self._by_wire: dict[tuple[str, bytes], Placing] = {}
        self._single: dict[tuple[int, str], Placing] = {}

    def single(self, device_id: int, memory_kind: str = DEVICE_MEMORY) -> Placing:
        """Returns the placing on one device."""
        key = (device_id, memory_kind)
        found = self._single.get(key)
        if found is None:
            self.check((device_id,))
            found = self._single[key] = self._make_single(device_id, memory_kind)
        return found

    def hlo(
        self, device_ids: Sequence[int], op_sharding: bytes, memory_kind: str = DEVICE_MEMORY
    ) -> Placing:
        """Returns the placing for XLA's own sharding."""
        message = core_pb2.HloShardingProto(
            xla_op_sharding=op_sharding, memory_kind=_on_the_wire(memory_kind)
        )
        message.devices.device_ids.extend(device_ids)
        return self._remembered(_HLO, message.SerializeToString())

    def from_wire(self, proto: core_pb2.ShardingProto) -> Placing:
        """Returns the placing that a request names."""
        serialized = proto.serialized_sharding
        return self._remembered(serialized.type_name, serialized.data)

    def on(self, placing: Placing, device_ids: Sequence[int], memory_kind: str = "") -> Placing:
        """Returns the same sharding over other devices; in another memory if one is named."""
        memory_kind = self._known(memory_kind or placing.memory_kind)
        if len(device_ids) != len(placing.device_ids):
            raise invalid_argument(
                f"{len(device_ids)} devices for an array on {len(placing.device_ids)}"
            )
        if placing.op_sharding is not None:
            return self.hlo(device_ids, placing.op_sharding, memory_kind)
        if len(device_ids) == 1:
            return self.single(device_ids[0], memory_kind)
        return self._concrete_even_on(placing, device_ids, memory_kind)

    def client(self, slices: tuple[int, ...]) -> DeviceClient:
        """Returns the client of a set of slices, ascending."""
        return self._clients.get(slices)

    def slices(self, device_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the virtual slices of some devices, ascending."""
        return tuple(sorted({self._slice_of[i] for i in device_ids}))

    def check(self, device_ids: Sequence[int]) -> None:
        """Refuses devices that do not exist."""
        for device_id in device_ids:
            if not 0 <= device_id < len(self._slice_of):
                raise invalid_argument(f"there is no device {device_id}")

    @functools.cached_property
    def memory_kinds(self) -> tuple[str, ...]:
        """The kinds of memory of each device, the default first."""
        return self.client(self.slices((0,))).memory_kinds

    def _memory_kind(self, message: _HasMemoryKind) -> str:
        return self._known(message.memory_kind or DEVICE_MEMORY)

    def _known(self, kind: str) -> str:
        if kind not in self.memory_kinds:
            raise invalid_argument(f"there is no memory of kind {kind!r}")
        return kind

    def _remembered(self, type_name: str, data: bytes) -> Placing:
        key = (type_name, data)
        found = self._by_wire.get(key)
        if found is None:
            found = self._make(type_name, data)
            if len(self._by_wire) >= _REMEMBERED:
                self._forget()
            self._by_wire[key] = found
        return found

    def _forget(self) -> None:
        self._by_wire.clear()
        forget_cached()

    def _make(self, type_name: str, data: bytes) -> Placing:
        if type_name == _SINGLE:
            single = core_pb2.SingleDeviceShardingProto.FromString(data)
            return self.single(single.device_id, self._memory_kind(single))
        if type_name == _CONCRETE_EVEN:
            return self._make_concrete_even(data)
        if type_name != _HLO:
            raise StatusError(Code.UNIMPLEMENTED, f"shardings of type {type_name!r}")
        message = core_pb2.HloShardingProto.FromString(data)
        memory_kind = self._memory_kind(message)
        device_ids = self._devices(message.devices)
        op_sharding = checked_op_sharding(message.xla_op_sharding, len(device_ids))
        message.xla_op_sharding = op_sharding
        proto = _proto(_HLO, message.SerializeToString())
        return self._placing(device_ids, proto, memory_kind, op_sharding=op_sharding)

    def _make_single(self, device_id: int, memory_kind: str) -> Placing:
        message = core_pb2.SingleDeviceShardingProto(
            device_id=device_id, memory_kind=_on_the_wire(memory_kind)
        )
        proto = _proto(_SINGLE, message.SerializeToString())
        return self._placing((device_id,), proto, memory_kind)

    def _make_concrete_even(self, data: bytes) -> Placing:
        message = core_pb2.ConcreteEvenShardingProto.FromString(data)
        memory_kind = self._memory_kind(message)
        shard = tuple(message.shard_shape.dims)
        if min(shard, default=0) < 0:
            raise invalid_argument("a shard shape with a negative dimension")
        device_ids = self._devices(message.devices)
        return self._placing(device_ids, _proto(_CONCRETE_EVEN, data), memory_kind, shard=shard)

    def _placing(
        self,
        device_ids: tuple[int, ...],
        proto: core_pb2.ShardingProto,
        memory_kind: str,
        *,
        op_sharding: bytes | None = None,
        shard: tuple[int, ...] | None = None,
    ) -> Placing:
        slices = self.slices(device_ids)
        client = self.client(slices)
        if proto.serialized_sharding.type_name == _SINGLE:
            sharding = client.single_sharding(device_ids[0], memory_kind)
        else:
            # Without an op_sharding for XLA's bookkeeping only: programs use the pieces.
            sharding = client.hlo_sharding(device_ids, op_sharding or _REPLICATED, memory_kind)
        return Placing(
            device_ids,
            slices,
            client,
            proto=proto,
            sharding=sharding,
            memory_kind=memory_kind,
            op_sharding=op_sharding,
            shard=shard,
        )

    def _concrete_even_on(
        self, placing: Placing, device_ids: Sequence[int], memory_kind: str
    ) -> Placing:
        message = core_pb2.ConcreteEvenShardingProto.FromString(
            placing.proto.serialized_sharding.data
        )
        message.devices.device_ids[:] = device_ids
        message.memory_kind = memory_kind
        return self._remembered(_CONCRETE_EVEN, message.SerializeToString())

    def _devices(self, devices: core_pb2.DeviceListProto) -> tuple[int, ...]:
        device_ids = tuple(devices.device_ids)
        self.check(device_ids)
        if not device_ids or len(set(device_ids)) != len(device_ids):
            raise invalid_argument(f"a sharding over devices {device_ids}")
        return device_ids


def _on_the_wire(memory_kind: str) -> str | None:
    return None if memory_kind == DEVICE_MEMORY else memory_kind


def _proto(type_name: str, data: bytes) -> core_pb2.ShardingProto:
    proto = core_pb2.ShardingProto()
    proto.serialized_sharding.type_name = type_name
    proto.serialized_sharding.data = data
    return proto
