"""Machine types of TPU hosts on GKE, and the topologies of their slices.

Source: the public documentation of GKE on TPUs and of PathwaysJob.
"""

from __future__ import annotations

from typing import Final

from shared_pathways_service.api.topology import FAMILIES, FAMILY_NAMES, InstanceType
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["MACHINE_TYPES", "slice_type"]

#: Machine type: family.
MACHINE_TYPES: Final = {InstanceType(family, ()).machine_type: family for family in FAMILIES}

_FLAT: Final = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
#: All topologies of the families with two dimensions.
_TOPOLOGIES: Final = {
    "tpuv5e": _FLAT,
    "tpuv5e1t": ("2x4",),
    "tpuv6e": ("1x1", *_FLAT),
    "tpuv6e1t": ("2x4",),
}
#: Topologies of the other families below a cube of 64 chips.
_PARTS_OF_A_CUBE: Final = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_CUBE: Final = 4
_OF_CUBES: Final = "AxBxC of multiples of 4, the smallest first"


def slice_type(
    machine: object, topology: object, *, type_field: str, topology_field: str
) -> InstanceType:
    """Returns the type of a slice whose hosts have a machine type.

    Args:
      machine: e.g. ``ct5lp-hightpu-4t``, or the family, e.g. ``tpuv5e``.
      topology: e.g. ``4x8``.
      type_field: The machine type's name, for errors.
      topology_field: The topology's name, for errors.

    Raises:
      InvalidRequestError: There is no such machine type, or it does not have the topology.
    """
    family = FAMILY_NAMES.get(machine) if isinstance(machine, str) else None
    if family not in FAMILIES:
        expected = f"one of {', '.join([*sorted(MACHINE_TYPES), *FAMILIES])}"
        raise InvalidRequestError(type_field, machine, expected)
    kind = _parsed(family, topology, topology_field)
    if kind is None or not _exists(kind):
        known = _TOPOLOGIES.get(family) or (*_PARTS_OF_A_CUBE, _OF_CUBES)
        expected = f"a topology of {machine}: {', '.join(known[:-1])}{' or ' * (len(known) > 1)}"
        raise InvalidRequestError(topology_field, topology, expected + known[-1])
    return kind


def _parsed(family: str, topology: object, field: str) -> InstanceType | None:
    try:
        return InstanceType.parse(f"{family}:{topology}", field=field)
    except InvalidRequestError:
        return None


def _exists(kind: InstanceType) -> bool:
    if kind.family in _TOPOLOGIES:
        return kind.topology in _TOPOLOGIES[kind.family]
    if kind.topology in _PARTS_OF_A_CUBE:
        return True
    return not any(dim % _CUBE for dim in kind.dims) and list(kind.dims) == sorted(kind.dims)
