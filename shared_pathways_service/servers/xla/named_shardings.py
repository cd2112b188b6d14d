"""Converts XLA's shardings by named axes of a mesh into tiles, which every jaxlib can read.

XLA has two forms of a sharding. The older one has the tiles of each dimension and the order of the
devices; the newer one (HloShardingV3 in XLA's sources) has a mesh with named axes and, for each
dimension, the axes that divide it. JAX 0.12 sends the newer form; older jaxlib cannot read it, and
JAX's own Python code uses tiles in every release. So the proxy converts the newer form into the
older one in requests, and in the shardings that an executable reports.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from shared_pathways_service.protocol.ifrt import xla_pb2
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)

__all__ = ["as_tiles"]

#: The most devices of a mesh. No service has as many; a request may name any number.
_MOST_DEVICES = 1 << 16
#: The most dimensions of an iota_transform: numpy's arrays have no more.
_MOST_AXES = 64

_Type = xla_pb2.OpSharding
_Named = xla_pb2.NamedShardingProto


def as_tiles(sharding: xla_pb2.OpSharding) -> xla_pb2.OpSharding:
    """Returns a sharding without named axes; the same object if it has none.

    Args:
      sharding: A sharding over the devices from 0 up, in the order of a device list.

    Raises:
      StatusError: INVALID_ARGUMENT for axes that do not make a sharding; UNIMPLEMENTED for a
        reduction other than a sum, which tiles cannot express.
    """
    if not sharding.HasField("named_sharding"):
        return sharding
    named = sharding.named_sharding
    if named.unreduced_axes and named.reduction_op != _Named.SUM:
        kind = _Named.ReductionOpProto.Name(named.reduction_op)
        raise StatusError(Code.UNIMPLEMENTED, f"an array still to be reduced by {kind}, not SUM")
    if not named.mesh.axes:
        return _without_axes(named)
    mesh = _Mesh.of(named)
    dimensions = [mesh.find(dimension.axes) for dimension in named.dim_shardings]
    groups = {
        _Type.MANUAL: mesh.find(named.manual_axes),
        _Type.UNREDUCED: mesh.find(named.unreduced_axes),
    }
    in_order = [*itertools.chain(*dimensions, *groups.values())]
    used = set(in_order)
    if len(used) != len(in_order):
        raise _wrong("an axis that is used twice")
    if used.intersection(mesh.find(named.replicated_axes)):
        raise _wrong("an axis that is both replicated and used")
    if not used:
        return _Type(type=_Type.REPLICATED)
    groups[_Type.REPLICATED] = [i for i in range(len(mesh.sizes)) if i not in used]
    groups = {kind: axes for kind, axes in groups.items() if axes}
    order = [*in_order, *groups.get(_Type.REPLICATED, ())]
    return _Type(
        type=_Type.OTHER,
        tile_assignment_dimensions=[mesh.size(a) for a in (*dimensions, *groups.values())],
        tile_assignment_devices=mesh.devices.transpose(order).ravel().tolist(),
        last_tile_dims=groups,
    )


def _without_axes(named: xla_pb2.NamedShardingProto) -> xla_pb2.OpSharding:
    """Returns the meaning of a mesh without axes: one device, or all of them with equal data."""
    if len(named.mesh.device_ids) > 1:
        raise _wrong(f"a mesh of {len(named.mesh.device_ids)} devices without axes")
    lists = [named.manual_axes, named.unreduced_axes, named.replicated_axes]
    if any(lists) or any(dimension.axes for dimension in named.dim_shardings):
        raise _wrong("axes that its mesh does not have")
    if named.mesh.device_ids:
        return _Type(type=_Type.MAXIMAL, tile_assignment_devices=named.mesh.device_ids)
    return _Type(type=_Type.REPLICATED)


@dataclasses.dataclass(frozen=True)
class _Mesh:
    """A mesh whose axes are split where a sharding uses a part of one.

    Attributes:
      devices: One dimension for each part of an axis; an axis of size 1 has none.
      cuts: For each axis before it was split, the products of the sizes before each part of it,
        and its size: 1, …, size.
    """

    devices: np.ndarray
    cuts: Sequence[Sequence[int]]

    @classmethod
    def of(cls, named: xla_pb2.NamedShardingProto) -> _Mesh:
        sizes = [axis.size for axis in named.mesh.axes]
        count = _product(sizes, "an axis")
        cuts = [{1, size} for size in sizes]
        for reference in _references(named):
            if not 0 <= reference.mesh_axis_index < len(sizes):
                raise _wrong(f"axis {reference.mesh_axis_index} of a mesh with {len(sizes)} axes")
            cuts[reference.mesh_axis_index].update(
                _ends(reference, sizes[reference.mesh_axis_index])
            )
        in_order = [sorted(ends) for ends in cuts]
        split = []
        for ends in in_order:
            for before, after in itertools.pairwise(ends):
                if after % before:
                    raise _wrong(f"parts of an axis that overlap, at {before} and {after}")
                split.append(after // before)
        return cls(_device_ids(named.mesh, count).reshape(split), in_order)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the split axes."""
        return self.devices.shape

    def size(self, axes: Iterable[int]) -> int:
        """Returns the product of the sizes of some split axes."""
        return math.prod(self.sizes[i] for i in axes)

    def find(self, references: Iterable[xla_pb2.AxisRefProto]) -> list[int]:
        """Returns the indices of the split axes that some references name, in order."""
        firsts = [0, *itertools.accumulate(len(ends) - 1 for ends in self.cuts)]
        found: list[int] = []
        for reference in references:
            ends = self.cuts[reference.mesh_axis_index]
            start, end = _ends(reference, ends[-1])
            first = firsts[reference.mesh_axis_index]
            found += range(first + ends.index(start), first + ends.index(end))
        return found


def _references(named: xla_pb2.NamedShardingProto) -> Iterable[xla_pb2.AxisRefProto]:
    return itertools.chain(
        *(dimension.axes for dimension in named.dim_shardings),
        named.replicated_axes,
        named.unreduced_axes,
        named.manual_axes,
    )


def _ends(reference: xla_pb2.AxisRefProto, size: int) -> tuple[int, int]:
    """Returns the products of the sizes before and including a part of an axis."""
    if not reference.HasField("sub_axis_info"):
        return 1, size
    part = reference.sub_axis_info
    end = part.pre_size * part.size
    if part.pre_size < 1 or part.size < 1 or end > size or size % end:
        raise _wrong(f"a part ({part.pre_size}){part.size} of an axis of size {size}")
    return part.pre_size, end


def _device_ids(mesh: xla_pb2.MeshProto, count: int) -> np.ndarray:
    if mesh.HasField("iota_transform"):
        shape, order = mesh.iota_transform.reshape_dims, mesh.iota_transform.transpose_perm
        if mesh.device_ids:
            raise _wrong("both device_ids and an iota_transform")
        if _product(shape, "a dimension of its iota_transform") != count:
            raise _wrong(f"an iota_transform of other than its {count} devices")
        if len(shape) > _MOST_AXES or sorted(order) != list(range(len(shape))):
            raise _wrong("a transpose_perm that is not a permutation of its reshape_dims")
        return np.arange(count).reshape(shape).transpose(order)
    if mesh.device_ids and len(mesh.device_ids) != count:
        raise _wrong(f"{len(mesh.device_ids)} device_ids for axes of {count} devices")
    return np.array(mesh.device_ids or range(count))


def _product(sizes: Iterable[int], what: str) -> int:
    product = 1
    for size in sizes:
        product *= size
        if size < 1 or product > _MOST_DEVICES:
            raise _wrong(f"{what} of size {size}: each must be from 1 up, all at most 65536")
    return product


def _wrong(what: str) -> StatusError:
    return invalid_argument(f"a named_sharding with {what}")
