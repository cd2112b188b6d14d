"""Groups devices by slice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["SliceKey", "group_by_slice", "mesh_of", "share_of", "slice_index"]

#: Returns the slice of a device.
SliceKey = Callable[[jax.Device], int]


def slice_index(device: jax.Device) -> int:
    """Returns the device's own ``slice_index``; 0 for devices without one, such as a CPU's."""
    index: int = getattr(device, "slice_index", 0)
    return index


def group_by_slice(
    devices: Iterable[jax.Device], key: SliceKey = slice_index
) -> Mapping[int, Sequence[jax.Device]]:
    """Returns the devices of each slice, by its index."""
    found: dict[int, list[jax.Device]] = {}
    for device in devices:
        found.setdefault(key(device), []).append(device)
    return {index: tuple(found[index]) for index in sorted(found)}


def mesh_of(slices: Mapping[int, Sequence[jax.Device]]) -> Mesh:
    """Returns a mesh of slices by the devices of each: axes ``slice`` and ``device``.

    Raises:
      InvalidRequestError: The slices are not of one size.
    """
    rows = list(slices.values())
    sizes = sorted({len(row) for row in rows})
    if len(sizes) > 1:
        raise InvalidRequestError("devices", sizes, "slices of one size, for a mesh of them")
    return Mesh(np.array(rows), ("slice", "device"))


def share_of(x: float, part: int, total: int) -> int | float:
    """Returns the share of `x` for `part` of `total` slices; that of a whole number is whole.

    Raises:
      ValueError: The share of a whole number is not whole.
    """
    if not isinstance(x, int):
        return x * part / total
    share, remainder = divmod(x * part, total)
    if remainder:
        raise ValueError(
            f"{x} cannot be scaled to {part} of {total} slices: {remainder} would be left"
        )
    return share
