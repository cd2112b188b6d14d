"""Cuts the pieces of an array in one place out of its pieces in another, in the host's memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["recut"]

Index = tuple[slice, ...]
#: The start of each axis, and the first index behind it.
_Bounds = tuple[tuple[int, int], ...]


def recut(
    shape: tuple[int, ...],
    have: Sequence[Index],
    parts: Sequence[np.ndarray],
    want: Sequence[Index],
) -> list[np.ndarray]:
    """Returns the wanted parts of an array; equal ones are the same object, none may be changed.

    Args:
      shape: The array's.
      have: The part of the array that each of `parts` is.
      parts: Pieces that together make up the whole.
      want: The parts to return.
    """
    # (Replicas are equal: any will do.)
    held = {_bounds(index, shape): part for index, part in zip(have, parts, strict=True)}
    wanted = [_bounds(index, shape) for index in want]
    cut = {bounds: _cut(bounds, held, parts[0].dtype) for bounds in wanted}
    return [cut[bounds] for bounds in wanted]


def _bounds(index: Index, shape: tuple[int, ...]) -> _Bounds:
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _cut(wanted: _Bounds, held: dict[_Bounds, np.ndarray], dtype: np.dtype) -> np.ndarray:
    overlaps = []
    for bounds, part in held.items():
        common = tuple(
            (max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, bounds, strict=True)
        )
        if common == wanted:
            return part[_within(common, bounds)]
        if all(begin < end for begin, end in common):
            overlaps.append((common, bounds, part))
    made = np.empty([end - begin for begin, end in wanted], dtype)
    for common, bounds, part in overlaps:
        made[_within(common, wanted)] = part[_within(common, bounds)]
    return made


def _within(inner: _Bounds, outer: _Bounds) -> Index:
    return tuple(slice(a - o, b - o) for (a, b), (o, _) in zip(inner, outer, strict=True))
