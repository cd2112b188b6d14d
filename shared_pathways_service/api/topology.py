"""Instance types: a TPU family and the shape of a slice, and properties derived from them.

An instance type is written ``FAMILY:AxB`` or ``FAMILY:AxBxC``, e.g. ``tpuv6e:2x2``: one slice of
this family whose chips form a box of this shape. Node labels, machine types, chips per host and
hosts per slice all come from one table. Its sources: the public documents of Pathways on Cloud
and of GKE ("Plan TPUs in GKE"), xpk's ``system_characteristics.py`` (2026-06) and pathwaysutils'
``tpu_specs.py`` (0.1.13); the device kinds are those of ``jax._src.mesh_utils``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Final

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["FAMILIES", "FAMILY_NAMES", "MAX_CHIPS", "InstanceType"]

#: Larger than any slice; guards against typing errors.
MAX_CHIPS: Final = 16_384

_EXPECTED: Final = "FAMILY:AxB or FAMILY:AxBxC, e.g. tpuv6e:2x2"
_FORM: Final = re.compile(r"([a-z0-9]+):([0-9]+(?:x[0-9]+)*)")
_DIMENSION: Final = re.compile(r"[1-9][0-9]{0,4}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Family:
    dimensions: int
    device_kind: str
    accelerator_label: str
    machine_type: str
    chips_per_host: int = 4
    #: TensorCores, which the numbers in Cloud TPU's names count.
    cores_per_chip: int = 1
    #: Other names of the family, besides its machine type.
    names: tuple[str, ...] = ()


_V5E: Final = ("TPU v5 lite", "tpu-v5-lite-podslice")
_V6E: Final = ("TPU v6 lite", "tpu-v6e-slice")
_TABLE: Final = {
    "tpuv4": _Family(
        3, "TPU v4", "tpu-v4-podslice", "ct4p-hightpu-4t", cores_per_chip=2, names=("v4",)
    ),
    "tpuv5": _Family(
        3, "TPU v5p", "tpu-v5p-slice", "ct5p-hightpu-4t", cores_per_chip=2, names=("v5p",)
    ),
    "tpuv5e": _Family(2, *_V5E, "ct5lp-hightpu-4t", names=("v5litepod", "v5e", "tpuv5lite")),
    "tpuv5e1t": _Family(2, *_V5E, "ct5lp-hightpu-8t", chips_per_host=8),
    "tpuv6e": _Family(2, *_V6E, "ct6e-standard-4t", names=("v6e",)),
    "tpuv6e1t": _Family(2, *_V6E, "ct6e-standard-8t", chips_per_host=8),
    "tpu7x": _Family(3, "TPU7x", "tpu7x", "tpu7x-standard-4t", cores_per_chip=2),
}

#: Names of the families, sorted.
FAMILIES: Final = tuple(sorted(_TABLE))
#: Family by each of its names, including its own and its machine type.
FAMILY_NAMES: Final = {
    name: family
    for family, known in _TABLE.items()
    for name in (family, known.machine_type, *known.names)
}


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class InstanceType:
    """A family of TPUs and the shape of a slice; hashable, sorted by family, then shape.

    Attributes:
      family: e.g. ``tpuv6e``; one of `FAMILIES`.
      dims: Chips along x, y and, in three-dimensional families, z.
    """

    family: str
    dims: tuple[int, ...]

    @classmethod
    def parse(cls, text: object, *, field: str = "instance_type") -> InstanceType:
        """Parses an instance type, e.g. ``tpuv6e:2x2``; raises InvalidRequestError."""
        form = _FORM.fullmatch(text) if isinstance(text, str) else None
        if form is None:
            raise InvalidRequestError(field, text, _EXPECTED)
        name, shape = form.groups()
        family = _TABLE.get(name)
        if family is None:
            raise InvalidRequestError(field, text, f"a family out of {', '.join(FAMILIES)}")
        dims = shape.split("x")
        if len(dims) != family.dimensions:
            form_of_family = "x".join("ABC"[: family.dimensions])
            raise InvalidRequestError(field, text, f"{name}:{form_of_family}, as {name} is built")
        if not all(_DIMENSION.fullmatch(dim) for dim in dims):
            raise InvalidRequestError(field, text, "whole numbers from 1 up as dimensions")
        parsed = tuple(int(dim) for dim in dims)
        if math.prod(parsed) > MAX_CHIPS:
            raise InvalidRequestError(field, text, f"at most {MAX_CHIPS} chips in a slice")
        return cls(name, parsed)

    def __str__(self) -> str:
        return f"{self.family}:{self.topology}"

    @property
    def chips(self) -> int:
        """Chips of a slice."""
        return math.prod(self.dims)

    @property
    def chips_per_host(self) -> int:
        """Chips on each host of a slice; a slice smaller than a host's board has fewer."""
        return min(self.chips, _TABLE[self.family].chips_per_host)

    @property
    def hosts(self) -> int:
        """Hosts of a slice, at least 1."""
        return math.ceil(self.chips / self.chips_per_host)

    @property
    def dimensions(self) -> int:
        """Number of dimensions of the family's slices."""
        return _TABLE[self.family].dimensions

    @property
    def cores_per_chip(self) -> int:
        """TensorCores per chip."""
        return _TABLE[self.family].cores_per_chip

    @property
    def device_kind(self) -> str:
        """JAX's name of such a device, e.g. ``TPU v6 lite``."""
        return _TABLE[self.family].device_kind

    @property
    def accelerator_label(self) -> str:
        """Value of the node label ``cloud.google.com/gke-tpu-accelerator``."""
        return _TABLE[self.family].accelerator_label

    @property
    def machine_type(self) -> str:
        """The machine type of the slice's hosts on Google Cloud."""
        return _TABLE[self.family].machine_type

    @property
    def topology(self) -> str:
        """The shape in the form of node labels, e.g. ``2x2``."""
        return "x".join(map(str, self.dims))

    def chip_coords(self) -> list[tuple[int, int, int]]:
        """Returns the coordinates (x, y, z) of each chip, x fastest; z is 0 in two dimensions."""
        width, height, depth = (*self.dims, 1)[:3]
        return [(x, y, z) for z in range(depth) for y in range(height) for x in range(width)]
