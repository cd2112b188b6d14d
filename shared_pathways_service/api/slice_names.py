"""Parses other names of instance types: GKE's, upstream's and xpk's.

==========================  ====================  ==========================================
name                        example               used by
==========================  ====================  ==========================================
``FAMILY:TOPOLOGY``         ``tpuv6e:4x4``        Pathways
``MACHINE_TYPE:TOPOLOGY``   ``ct6e-standard-4t:4x4``  GKE's node pools, PathwaysJob
``GENERATION:TOPOLOGY``     ``v6e:4x4``           pathwaysutils' deploy_pathways_service
``GENERATION-TOPOLOGY``     ``v6e-4x4``           xpk
``GENERATION-NUMBER``       ``v6e-16``            xpk, Cloud TPU
==========================  ====================  ==========================================

The number counts TensorCores: one per chip of v5e and v6e, two per chip of v4, v5p and tpu7x. It
means the topology in xpk's table (``xpk/core/system_characteristics.py``, 2026-06).
"""

from __future__ import annotations

import re
from typing import Final

from shared_pathways_service.api.topology import FAMILY_NAMES, InstanceType
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["EXAMPLES", "named_type"]

#: For error messages.
EXAMPLES: Final = "tpuv6e:4x4, ct6e-standard-4t:4x4 or v6e-16"

_NUMBERED: Final = re.compile(r"([a-z0-9]+)-([1-9][0-9]{0,5})")
_WITH_TOPOLOGY: Final = re.compile(r"([-a-z0-9]+):([^:]*)|([a-z0-9]+)-([0-9]+(?:x[0-9]+)+)")

#: Topologies of two-dimensional families, by number of chips.
_FLAT: Final = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
#: Topologies of three-dimensional families smaller than a cube, by number of chips.
_PARTS_OF_A_CUBE: Final = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4"}
_CUBE: Final = 4
#: Up to this many chips, a number has one topology in xpk's table; in two dimensions, always.
_MOST_CHIPS: Final = {"tpuv4": 320, "tpuv5": 6144, "tpu7x": 6144}


def named_type(text: object, *, field: str = "instance_type") -> InstanceType:
    """Returns the instance type of a name; raises InvalidRequestError."""
    if not isinstance(text, str):
        return InstanceType.parse(text, field=field)
    if numbered := _NUMBERED.fullmatch(text):
        return _of_cores(numbered[1], int(numbered[2]), text, field)
    form = _WITH_TOPOLOGY.fullmatch(text)
    if form is None:
        expected = f"an instance type, e.g. {EXAMPLES}"
        raise InvalidRequestError(field, text, expected)
    name, topology = (form[1], form[2]) if form[1] else (form[3], form[4])
    try:
        # `parse` refuses an unknown family, and lists the known ones.
        return InstanceType.parse(f"{FAMILY_NAMES.get(name, name)}:{topology}", field=field)
    except InvalidRequestError as error:
        raise InvalidRequestError(field, text, error.expected) from None


def _of_cores(generation: str, cores: int, text: str, field: str) -> InstanceType:
    family = FAMILY_NAMES.get(generation)
    if family is None:
        known = sorted(name for name in FAMILY_NAMES if "-" not in name)
        raise InvalidRequestError(field, text, f"a generation out of {', '.join(known)}")
    probe = InstanceType(family, ())
    chips, rest = divmod(cores, probe.cores_per_chip)
    topology = None if rest else _topology(probe, chips)
    if topology is None:
        expected = f"a number of TensorCores that {generation} slices come in, or {family}:TOPOLOGY"
        raise InvalidRequestError(field, text, expected)
    return InstanceType.parse(f"{family}:{topology}", field=field)


def _topology(probe: InstanceType, chips: int) -> str | None:
    if probe.dimensions == 2:
        return _FLAT.get(chips)
    if chips < _CUBE**3:
        return _PARTS_OF_A_CUBE.get(chips)
    cubes, rest = divmod(chips, _CUBE**3)
    if rest or chips > _MOST_CHIPS[probe.family]:
        return None
    return "x".join(str(_CUBE * side) for side in _most_compact(cubes))


def _most_compact(cubes: int) -> tuple[int, int, int]:
    """Returns the sorted sides of the box of this many cubes with the smallest sum of sides."""
    boxes = (
        (x, y, cubes // (x * y))
        for x in range(1, cubes + 1)
        for y in range(x, cubes // x + 1)
        if cubes % (x * y) == 0 and cubes // (x * y) >= y
    )
    return min(boxes, key=lambda sides: (sum(sides), sides))
